"""Is the dataset on disk what the jobs that wrote it recorded?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardwright.arrow import read_parquet
from shardwright.errors import BuildError
from shardwright.files import read_json, sha256_file
from shardwright.tarformat import sample_size, tar_index

AGAIN = "delete it and run the same command again: it is written anew"


def read_receipts(folder: Path, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the receipts of all planned tars, in the plan's order.

    Raises:
        BuildError: A receipt tells of another plan.
    """
    receipts = []
    for stem, part in plan["parts"].items():
        path = folder / f"{stem}.json"
        receipt = read_json(path)
        for name in ("samples", "content_sha256"):
            if receipt[name] != part[name]:
                raise BuildError(
                    str(path),
                    found=f"{name} {receipt[name]}",
                    expected=f"{part[name]}, as planned",
                    next_step=f"delete it and run the same command again: {receipt['tar']} is written anew",
                )
        receipts.append(receipt)
    return receipts


def check_no_foreign_tars(dataset: Path, names: Iterable[str]) -> None:
    """Refuse tars of an earlier, larger build: a copy or upload of the folder would take them along.

    Raises:
        BuildError: The folder holds a tar or an index that is not planned.
    """
    known = {known for name in names for known in (name, f"{name}.idx")}
    foreign = sorted(path.name for path in dataset.glob("*.tar*") if path.name not in known)
    if foreign:
        raise BuildError(
            str(dataset),
            found=f"{len(foreign)} files that are not part of this build: {', '.join(foreign[:4])}"
            + (", …" if len(foreign) > 4 else ""),
            expected="the planned tars alone",
            next_step="remove them: rm " + " ".join(str(dataset / name) for name in foreign),
        )


def _check_tar(dataset: Path, index: Path, receipt: dict[str, Any]) -> None:
    path = dataset / receipt["tar"]
    stem = path.name.removesuffix(".tar").replace("-shard-", "-")
    stat, written = path.stat(), (index / f"{stem}.json").stat().st_mtime_ns
    found = f"{stat.st_size} bytes"
    expected = f"{receipt['bytes']} bytes"
    if found == expected and stat.st_mtime_ns > written:  # something touched it after its job
        found += f", SHA-256 {sha256_file(path)}"
        expected += f", SHA-256 {receipt['sha256']}"
    if found != expected:
        raise BuildError(str(path), found=found, expected=f"{expected}, as written", next_step=AGAIN)
    columns = read_parquet(index / f"{stem}.parquet")
    sizes = zip(*(columns[name].to_pylist() for name in ("image_size", "conversation_size")), strict=True)
    offsets = [0, *itertools.accumulate(itertools.starmap(sample_size, sizes))]
    idx = dataset / f"{receipt['tar']}.idx"
    if offsets[:-1] != columns["offset"].to_pylist() or idx.read_bytes() != tar_index(offsets):
        raise BuildError(
            str(idx),
            found="other offsets than the tar's members have",
            expected=f"{len(offsets)} offsets from 0 to {offsets[-1]}",
            next_step=f"delete {path} and run the same command again: both are written anew",
        )


def check_tars(dataset: Path, index: Path, receipts: list[dict[str, Any]], threads: int = 1) -> None:
    """Compare every tar with its receipt, and its index with its table of members.

    The job that wrote a tar hashed it. A tar that is younger than its receipt is hashed again; to
    read all of them would take one job as long as all that wrote them.

    Raises:
        BuildError: A tar or an index is not what was written.
    """
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda receipt: _check_tar(dataset, index, receipt), receipts):
            pass
