"""The static plan of a build: shards from pinned row counts, output tars from the sample budget.

Standard library only: the Snakefile imports this module before anything is downloaded.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import BuildError
from shardwright.file_pins import read_rows

PIN_COLUMNS = ("file", "rows", "bytes", "sha256")
NUM_SIGMAS = 4.0
PINNED_SIGMAS = 8.0  # and as many samples more: a count that was realised must never be refused


@dataclass(frozen=True)
class Pin:
    """One metadata parquet as the build expects it: name without suffix, rows, bytes, SHA-256."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Rows `[start, stop)` of one parquet; `shard_id` counts through all parquets in pin order."""

    shard_id: int
    name: str
    start: int
    stop: int

    @property
    def key(self) -> str:
        """The shard id as file names carry it: eight digits."""
        return f"{self.shard_id:08d}"


@dataclass(frozen=True)
class Tar:
    """One output tar: its split (`train` or `val`) and its number within the split."""

    split: str
    index: int

    @property
    def part(self) -> str:
        """The tar's number as file names carry it: six digits."""
        return f"{self.index:06d}"

    @property
    def stem(self) -> str:
        """`{split}-{part}`, the name of its plan."""
        return f"{self.split}-{self.part}"


def _pin(row: dict[str, str], path: Path, line: int) -> Pin:
    where = f"{path} line {line}"
    next_step = "correct the row; `sha256sum FILE`, `stat -c %s FILE` and the parquet's row count give it"
    try:
        rows, size = int(row["rows"]), int(row["bytes"])
    except (TypeError, ValueError):
        raise BuildError(
            where,
            found=f"rows {row['rows']!r}, bytes {row['bytes']!r}",
            expected="two whole numbers",
            next_step=next_step,
        ) from None
    if rows <= 0 or size <= 0:
        raise BuildError(
            where, found=f"rows {rows}, bytes {size}", expected="positive numbers", next_step=next_step
        )
    if not re.fullmatch(r"[0-9a-f]{64}", row["sha256"] or ""):
        raise BuildError(
            where, found=f"sha256 {row['sha256']!r}", expected="64 lowercase hex digits", next_step=next_step
        )
    if not re.fullmatch(r"[A-Za-z0-9._-]+\.parquet", row["file"] or ""):
        raise BuildError(
            where,
            found=f"file {row['file']!r}",
            expected="the plain name of a .parquet file (letters, digits, . _ -)",
            next_step="give the name as it stands in the repository, without folders",
        )
    return Pin(row["file"].removesuffix(".parquet"), rows, size, row["sha256"])


def read_pins(path: Path) -> list[Pin]:
    """Read a pin table: tab-separated, a header, one row a parquet.

    Raises:
        BuildError: The table is missing, empty, or a row is malformed or doubled.
    """
    next_step = "write it, or correct the config key metadata.pins"
    rows = read_rows(path, PIN_COLUMNS, "pin table", next_step)
    pins = [_pin(row, path, number) for number, row in enumerate(rows, start=2)]
    names = [pin.name for pin in pins]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if not pins or doubled:
        raise BuildError(
            str(path),
            found=f"the file {doubled[0]}.parquet twice" if doubled else "no rows",
            expected="one row for each parquet",
            next_step="correct the table",
        )
    return pins


def plan_shards(pins: list[Pin], rows_per_shard: int) -> list[Shard]:
    """Cut each parquet into shards of `rows_per_shard` rows (the last one shorter), in pin order."""
    shards: list[Shard] = []
    for pin in pins:
        for start in range(0, pin.rows, rows_per_shard):
            shards.append(Shard(len(shards), pin.name, start, min(start + rows_per_shard, pin.rows)))
    return shards


def _spread(total: int, share: float) -> float:
    return math.sqrt(total * share * (1 - share))


def _tars_between(low: float, high: float, total: int, per_tar: int) -> tuple[int, int]:
    return math.ceil(max(0.0, low) / per_tar), math.ceil(min(high, total) / per_tar)


def _check_pinned(split: str, count: int, total: int, share: float, per_tar: int) -> None:
    mean, spread = total * share, PINNED_SIGMAS * _spread(total, share)
    spread += PINNED_SIGMAS if spread else 0
    low, high = _tars_between(mean - spread, mean + spread, total, per_tar)
    if not low <= count <= high:
        raise BuildError(
            f"config samples.tars.{split} {count}",
            found=f"a {split} split of about {mean:.0f} samples in tars of {per_tar}",
            expected=f"{low} to {high} tars" if low < high else f"{low} tars",
            next_step=f"correct samples.tars.{split}, samples.per_tar or samples.total",
        )


def _num_tars(split: str, total: int, share: float, per_tar: int) -> int:
    """Tars that `split` needs, if four standard deviations of the hash split agree on the number."""
    if share == 0:
        return 0
    mean, spread = total * share, NUM_SIGMAS * _spread(total, share)
    low, high = _tars_between(mean - spread, mean + spread, total, per_tar)
    if low == high and low > 0:
        return low
    raise BuildError(
        f"config samples.per_tar {per_tar}",
        found=f"a {split} split of {mean:.0f} ± {spread:.0f} samples, which may need {low} to {high} tars",
        expected="a budget whose tar count does not hang on the hash split",
        next_step=f"set samples.tars to the count you want (for example {split}: {max(high, 1)}), "
        "or change samples.total, samples.validation_fraction or samples.per_tar",
    )


def plan_tars(samples: dict[str, Any], num_rows: int) -> list[Tar]:
    """Name every output tar from the sample budget alone.

    Args:
        samples: The config's `samples` section.
        num_rows: Rows of all pinned parquets together.

    Raises:
        BuildError: More samples than rows, a tar count that the hash split could change, or a pinned
            one that it cannot give.
    """
    total, fraction = samples["total"], samples["validation_fraction"]
    if total > num_rows:
        raise BuildError(
            f"config samples.total {total}",
            found=f"{num_rows} rows in all pinned parquets",
            expected="no more samples than rows",
            next_step="lower samples.total, or pin more parquets",
        )
    shares = {"train": 1 - fraction, "val": fraction}
    pinned = samples["tars"] or {}
    tars = []
    for split, share in shares.items():
        count = pinned.get(split)
        if count is None:
            count = _num_tars(split, total, share, samples["per_tar"])
        else:
            _check_pinned(split, count, total, share, samples["per_tar"])
        tars += [Tar(split, index) for index in range(count)]
    return tars


def check_root(root: Path) -> None:
    """Refuse a build root that cannot be written, before a job finds out.

    Raises:
        BuildError: A file is in its place or its way, or its folder may not be written.
    """
    there = next(
        folder
        for folder in [root, *root.absolute().parents]
        if os.access(folder, os.F_OK, effective_ids=True)
    )
    found = ""
    if not there.is_dir():
        found = f"{there}, which is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        missing = "" if there == root else f"no such folder, and in {there} "
        found = f"{missing}no right to write"
    if found:
        raise BuildError(
            f"config key root {root}",
            found=found,
            expected="a folder that can be written, or made",
            next_step="correct `root`, mount its disk, or make the folder and give it to you",
        )
