"""A shard's three files: do they agree, what do they count, how are they published."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.arrow import read_parquet
from shardwright.errors import BuildError
from shardwright.failures import CLASSES, MEANING, TRANSIENT, classify, http_status
from shardwright.files import fsync_dir
from shardwright.raw_counts import check_attempts, check_keys
from shardwright.rawshard import group_samples
from shardwright.rawtar import BLOCK, BadTar, Member, walk_members


@dataclass(frozen=True)
class Triple:
    """Paths of a shard's tar, parquet and stats."""

    tar: Path
    parquet: Path
    stats: Path

    @staticmethod
    def inside(folder: Path, stem: str) -> Triple:
        """Return the names that img2dataset gives the three files in `folder`."""
        return Triple(folder / f"{stem}.tar", folder / f"{stem}.parquet", folder / f"{stem}_stats.json")

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """The three files in the order in which they are published: stats last."""
        return self.tar, self.parquet, self.stats

    def moved_to(self, folder: Path) -> Triple:
        """Return the triple of the same names in `folder`."""
        return Triple(*(folder / path.name for path in self.paths))


def _members(path: Path) -> list[Member]:
    with path.open("rb") as stream:
        return list(walk_members(stream.fileno()))


def end_of_members(path: Path) -> int:
    """Return where the last member of a tar ends and its end of archive begins."""
    last = _members(path)[-1:]
    return sum(member.offset + -(-member.size // BLOCK) * BLOCK for member in last)


def read_outcomes(parquet: Path) -> list[dict[str, Any]]:
    """Return key, status and error_message of every attempt."""
    return read_parquet(parquet, ["key", "status", "error_message"]).to_pylist()


def find_disagreement(triple: Triple, expected_keys: list[str]) -> str | None:
    """Compare tar, parquet and stats with each other and with the rows asked for, as the audit does.

    Returns:
        The first disagreement in words, or None.
    """
    try:
        attempts = check_attempts(triple.parquet, triple.stats, len(expected_keys), "")
        members = _members(triple.tar)
        samples = group_samples(members, triple.tar.stem) if members else []
        check_keys(triple.tar, frozenset(sample.key for sample in samples), attempts, "")
    except BuildError as error:
        return f"{Path(error.subject).name}: found {error.found}; expected {error.expected}"
    except (OSError, BadTar) as error:
        return f"{triple.tar.name} {error}"
    if sorted(row["key"] for row in read_outcomes(triple.parquet)) != expected_keys:
        return f"{triple.parquet.name}: found the keys of other rows than those asked for"
    return None


def count_outcomes(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows, successes, failures by class and by HTTP status, and how many may yet succeed."""
    failed = [row for row in outcomes if row["status"] != "success"]
    by_class = Counter(classify(row["status"], row["error_message"]) for row in failed)
    by_status = Counter(http_status(row["error_message"]) for row in failed)
    by_status.pop(None, None)
    return {
        "rows": len(outcomes),
        "successes": len(outcomes) - len(failed),
        "failure_classes": {name: by_class[name] for name in CLASSES if by_class[name]},
        "http_status": {str(code): by_status[code] for code in sorted(by_status)},
        "transient": sum(by_class[name] for name in TRANSIENT),
    }


def _message(row: dict[str, Any]) -> str | None:
    """Return a failed row's message as the stats count it: without the digests of a hash_mismatch."""
    text = row["error_message"]
    return f"hash_mismatch: {MEANING['hash_mismatch']}" if str(text).startswith("hash_mismatch: ") else text


def complete_stats(
    stats: dict[str, Any], outcomes: list[dict[str, Any]], extra: dict[str, Any]
) -> dict[str, Any]:
    """Return img2dataset's stats with its counts taken from the rows, and what else we know."""
    messages = Counter("success" if row["status"] == "success" else _message(row) for row in outcomes)
    statuses = Counter(row["status"] for row in outcomes)
    counted = count_outcomes(outcomes)
    return {
        **stats,
        "count": len(outcomes),
        "successes": statuses["success"],
        "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"],
        "status_dict": dict(sorted(messages.items(), key=lambda pair: (-pair[1], pair[0]))),
        "failure_classes": counted["failure_classes"],
        "http_status": counted["http_status"],
        **extra,
    }


def _make_durable(made: Triple) -> None:
    for path in made.paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        path.chmod(0o644)


def _merged_folder(target: Triple) -> Path:
    return target.tar.parent.parent / "scratch" / f"{target.tar.stem}.merged"


def publish(made: Triple, target: Triple) -> None:
    """Move a new triple to its place, stats last; old stats never stand beside a new tar."""
    _make_durable(made)
    shutil.rmtree(_merged_folder(target), ignore_errors=True)
    target.tar.parent.mkdir(parents=True, exist_ok=True)
    target.stats.unlink(missing_ok=True)
    made.tar.replace(target.tar)
    made.parquet.replace(target.parquet)
    made.stats.replace(target.stats)
    fsync_dir(target.tar.parent)


def publish_merged(folder: Path, target: Triple) -> None:
    """Replace a finished triple by the merged one in `folder`, whose files have the target's names.

    Renaming the folder decides: killed before, the old triple stands; killed after, `finish_merge`
    brings the new one to its place. No kill can lose what either holds.
    """
    _make_durable(target.moved_to(folder))
    fsync_dir(folder)
    folder.replace(_merged_folder(target))
    fsync_dir(folder.parent)
    finish_merge(target)


def finish_merge(target: Triple) -> None:
    """End a merge that was killed on its way, if there is one; whoever reads a triple calls this first.

    The caller holds the lock of the target's tar.
    """
    folder = _merged_folder(target)
    if not folder.is_dir():
        return
    for path in target.paths:
        made = folder / path.name
        if made.exists():
            made.replace(path)
    fsync_dir(target.tar.parent)
    shutil.rmtree(folder)
