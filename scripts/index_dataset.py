"""Check every tar against its receipt and write Energon's metadata of the dataset (.nv-meta)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shardwright.deadline import deadline
from shardwright.errors import run_cli
from shardwright.files import read_json, sha256_file, sole_writer, write_json
from shardwright.lean import start_lean
from shardwright.manifest import META_FILES


def index_dataset(plan: dict[str, Any], dataset: Path, receipt: Path, threads: int) -> dict[str, Any]:
    """Verify the tars, write `.nv-meta`, read it back, write `receipt`.

    Args:
        plan: The plan's summary.
        dataset: Folder of the tars.
        receipt: Path of the receipt; the receipts and member tables of the tars lie beside it.
        threads: Tars to read at a time.

    Returns:
        The receipt.
    """
    # These import pyarrow: here, behind start_lean.
    from shardwright.dataset_check import check_no_foreign_tars, check_tars, read_receipts
    from shardwright.energon_index import (
        check_with_energon,
        energon_version,
        write_declarations,
        write_sqlite,
    )

    receipts = read_receipts(receipt.parent, plan)
    check_no_foreign_tars(dataset, [tar["tar"] for tar in receipts])
    check_tars(dataset, receipt.parent, receipts, threads)
    splits: dict[str, list[str]] = {}
    for stem, tar in zip(plan["parts"], receipts, strict=True):
        splits.setdefault(stem.partition("-")[0], []).append(tar["tar"])
    meta = dataset / ".nv-meta"
    num_samples = sum(tar["samples"] for tar in receipts)
    members = [receipt.parent / f"{stem}.parquet" for stem in plan["parts"]]
    write_sqlite(members, num_samples, meta / "index.sqlite", threads)
    write_declarations(meta, receipts, splits)
    check_with_energon(dataset, receipts, splits)
    found = {
        "energon_version": energon_version,
        "samples": num_samples,
        "files": {name: sha256_file(meta / name) for name in META_FILES},
        "tars": receipts,
    }
    write_json(receipt, found)
    return found


def main(argv: list[str] | None = None) -> None:
    """Parse the options, index the dataset, print how much was indexed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="summary of the plan")
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the tars")
    parser.add_argument("--receipt", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=14_400.0)
    args = parser.parse_args(argv)
    plan = read_json(args.plan)
    with sole_writer(args.receipt), deadline(args.deadline_s, "indexing the dataset"):
        found = index_dataset(plan, args.dataset, args.receipt, args.threads)
    print(f"indexed {found['samples']} samples in {len(found['tars'])} tars")


if __name__ == "__main__":
    start_lean("numpy", "pandas")
    run_cli(main)
