"""Which samples become the training set, in which tar: one pass over the audit, in bounded memory."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardwright import verdicts
from shardwright.arrow import read_parquet
from shardwright.errors import BuildError
from shardwright.files import find_path
from shardwright.plan_table import SCHEMA
from shardwright.uid_set import UidSet, parse_uids

EXCLUDED = "excluded"
BEYOND_TOTAL = "beyond_total"
REASONS = (*verdicts.REASONS, EXCLUDED, BEYOND_TOTAL)

AUDIT_COLUMNS = ["verdict", *(name for name in SCHEMA.names if name != "shard")]
_KEEP = verdicts.VERDICTS.index(verdicts.KEEP)
_DUPLICATE = verdicts.VERDICTS.index(verdicts.DUPLICATE_UID)
_AFTER_DUPLICATES = [verdicts.VERDICTS.index(name) for name in verdicts.AFTER_DUPLICATES]


@dataclass(frozen=True)
class Exclusions:
    """What the user wants left out: uids, and SHA-256 digests of JPEGs."""

    uids: frozenset[str] = frozenset()
    jpg_sha256s: frozenset[str] = frozenset()


def read_exclusions(exclude: str) -> Exclusions:
    """Read the file that the config names: a uid or a JPEG's SHA-256 a line, `#` starts a comment.

    Raises:
        BuildError: No such file, or a line is neither.
    """
    if not exclude:
        return Exclusions()
    path = find_path(exclude)
    if not path.is_file():
        raise BuildError(
            str(path),
            found="no such file",
            expected="a list of samples to leave out, a uid or the SHA-256 of a JPEG a line",
            next_step="write it, or correct the config key samples.exclude",
        )
    uids, jpg_sha256s = set(), set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        entry = line.partition("#")[0].strip().lower()
        if re.fullmatch(r"[0-9a-f]{32}", entry):
            uids.add(entry)
        elif re.fullmatch(r"[0-9a-f]{64}", entry):
            jpg_sha256s.add(entry)
        elif entry:
            raise BuildError(
                f"{path} line {number}",
                found=repr(line),
                expected="a uid (32 hex digits) or the SHA-256 of a JPEG (64 hex digits)",
                next_step="correct the line, or start it with # to make it a comment",
            )
    return Exclusions(frozenset(uids), frozenset(jpg_sha256s))


def read_audit(path: Path) -> pa.Table:
    """Read the rows of one shard's audit.

    Raises:
        BuildError: Columns are missing, or the rows are not in key order.
    """
    next_step = f"delete {path} and run the same command again: the shard is audited anew"
    try:
        table = read_parquet(path, AUDIT_COLUMNS)
    except (OSError, pa.ArrowInvalid) as error:
        raise BuildError(
            str(path), found=str(error), expected="the audit of a shard", next_step=next_step
        ) from None
    if table.column_names != AUDIT_COLUMNS:
        raise BuildError(
            str(path),
            found=f"columns {table.column_names}",
            expected=" ".join(AUDIT_COLUMNS),
            next_step=next_step,
        )
    keys = table["key"].combine_chunks()
    if len(keys) > 1 and not pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        raise BuildError(
            str(path), found="rows out of key order", expected="each key once, ascending", next_step=next_step
        )
    return table


class Selector:
    """Judges one shard after another; remembers the kept uids and the counts.

    Args:
        total: Samples to keep.
        exclusions: Samples to leave out although they are sound.
    """

    def __init__(self, total: int, exclusions: Exclusions) -> None:
        self.total = total
        self.counts: Counter[str] = Counter()
        self.matched: set[str] = set()
        self._exclusions = exclusions
        self._kept_uids = UidSet(total)

    @property
    def num_kept(self) -> int:
        """Samples kept so far."""
        return self.counts[verdicts.KEEP]

    def judge(self, table: pa.Table, where: Path) -> pa.Table:
        """Return the rows of `table` (a shard's audit, in key order) that are kept."""
        codes = pc.index_in(table["verdict"], value_set=pa.array(verdicts.VERDICTS)).combine_chunks()
        if codes.null_count:
            raise BuildError(
                str(where),
                found=f"{codes.null_count} rows with an unknown verdict",
                expected="one of " + ", ".join(verdicts.VERDICTS),
                next_step=f"delete {where} and run the same command again: the shard is audited anew",
            )
        codes = codes.to_numpy(zero_copy_only=False).copy()
        excluded = self._find_excluded(table, codes)
        self._find_duplicates(table, codes, excluded)
        kept = np.flatnonzero((codes == _KEEP) & ~excluded)
        room = self.total - self.num_kept
        kept, beyond = kept[:room], kept[room:]
        self._kept_uids.add(parse_uids(table["uid"].take(kept).to_pylist()))
        self._count(codes, int(excluded.sum()), len(kept), len(beyond))
        return table.take(kept)

    def _find_excluded(self, table: pa.Table, codes: np.ndarray) -> np.ndarray:
        excluded = np.zeros(len(codes), dtype=bool)
        lists = (("uid", self._exclusions.uids), ("jpg_sha256", self._exclusions.jpg_sha256s))
        for column, entries in lists:
            if entries:
                listed = pc.is_in(table[column], value_set=pa.array(sorted(entries)))
                listed = listed.combine_chunks().to_numpy(zero_copy_only=False).astype(bool)
                self.matched.update(table[column].filter(pa.array(listed)).to_pylist())
                excluded |= listed & (codes == _KEEP)
        return excluded

    def _find_duplicates(self, table: pa.Table, codes: np.ndarray, excluded: np.ndarray) -> None:
        """Turn the code of each row whose uid was kept before into that of a duplicate."""
        rows = np.flatnonzero(np.isin(codes, _AFTER_DUPLICATES) & ~excluded)
        uids = parse_uids(table["uid"].take(rows).to_pylist())
        _, group = np.unique(uids, axis=0, return_inverse=True)
        group = group.reshape(-1)
        known = self._kept_uids.contains(uids)
        first = np.full(len(rows), len(rows))
        candidates = np.flatnonzero((codes[rows] == _KEEP) & ~known)
        np.minimum.at(first, group[candidates], candidates)
        beyond = np.sort(first[first < len(rows)])[self.total - self.num_kept :]
        first[np.isin(first, beyond)] = len(rows)
        codes[rows[known | (np.arange(len(rows)) > first[group])]] = _DUPLICATE

    def _count(self, codes: np.ndarray, num_excluded: int, num_kept: int, num_beyond: int) -> None:
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            if code != _KEEP:
                self.counts[verdicts.VERDICTS[code]] += int(count)
        self.counts[EXCLUDED] += num_excluded
        self.counts[verdicts.KEEP] += num_kept
        self.counts[BEYOND_TOTAL] += num_beyond


def in_validation(uids: list[str], fraction: float) -> np.ndarray:
    """Return, for each uid, whether its hash puts it into the val split."""
    first = b"".join(hashlib.sha256(uid.encode()).digest()[:8] for uid in uids)
    return np.frombuffer(first, dtype=">u8").astype(np.uint64) / 2.0**64 < fraction


def iter_kept(folder: Path, num_shards: int, selector: Selector) -> Iterator[pa.Table]:
    """Yield, shard by shard, the rows that `selector` keeps, in the columns of a plan."""
    for number in range(num_shards):
        path = folder / f"{number:08d}.samples.parquet"
        kept = selector.judge(read_audit(path), path)
        shard = pa.array([f"{number:08d}"] * len(kept), pa.string())
        yield kept.append_column("shard", shard).select(SCHEMA.names).cast(SCHEMA)
