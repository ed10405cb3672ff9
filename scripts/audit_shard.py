"""Audit one raw shard: structure, counts, every sample's text and JPEG."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright import verdicts
from shardwright.errors import run_cli
from shardwright.files import sole_writer
from shardwright.lean import start_lean
from shardwright.metadata import parse_columns


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", required=True, help="the shard's number, as in the names of its files")
    parser.add_argument("--tar", required=True, type=Path, help="raw tar")
    parser.add_argument("--parquet", required=True, type=Path, help="raw parquet: one row an attempt")
    parser.add_argument("--stats", required=True, type=Path, help="raw _stats.json")
    parser.add_argument("--rows", required=True, type=int, help="rows of metadata in this shard's plan")
    parser.add_argument("--columns", required=True, help="config metadata.columns: role=column pairs")
    parser.add_argument("--threads", type=int, default=1, help="threads that decode and hash (default 1)")
    parser.add_argument("--samples", required=True, type=Path, help="parquet to write: one row a sample")
    parser.add_argument("--report", required=True, type=Path, help="JSON to write: counts of the shard")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Audit the shard named by the options and print one line about it."""
    # These import pyarrow: here, behind start_lean.
    from shardwright.audit import RawFiles, audit_shard
    from shardwright.audit_sample import Expectations
    from shardwright.download.triple import Triple, finish_merge

    args = parse_args(argv)
    files = RawFiles(args.shard, args.tar, args.parquet, args.stats)
    expected = Expectations(face_boxes="face_bboxes" in parse_columns(args.columns))
    # The lock of the shard itself, too: retry_shard may be replacing it.
    with sole_writer(args.tar), sole_writer(args.report), sole_writer(args.samples):
        finish_merge(Triple(args.tar, args.parquet, args.stats))
        report = audit_shard(files, args.rows, args.samples, args.report, expected, args.threads)
    kept = report["verdicts"][verdicts.KEEP]
    drops = ", ".join(
        f"{count} {name}" for name, count in report["verdicts"].items() if count and name != verdicts.KEEP
    )
    print(
        f"shard {args.shard}: {kept} of {report['attempts']} URLs usable; "
        f"{report['attempts'] - report['successes']} not downloaded, dropped: {drops or 'none'}"
    )


if __name__ == "__main__":
    start_lean("numpy", "pandas")
    run_cli(main)
