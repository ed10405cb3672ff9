"""Sum the audits of all shards; write the counts and the table of failures."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.audit_advice import failures_tsv
from shardwright.audit_totals import sum_reports
from shardwright.errors import run_cli
from shardwright.files import replacing, sole_writer, write_json


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path, help="folder of the shards' reports")
    parser.add_argument("--num-shards", required=True, type=int, help="shards of the plan")
    parser.add_argument("--failures", required=True, type=Path, help="table to write: failures by class")
    parser.add_argument("--totals", required=True, type=Path, help="JSON to write: the summed counts")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Sum the reports of a folder."""
    args = parse_args(argv)
    with sole_writer(args.totals), sole_writer(args.failures):
        totals = sum_reports(args.folder, args.num_shards)
        with replacing(args.failures) as scratch:
            scratch.write_text(failures_tsv(totals), encoding="utf-8")
        write_json(args.totals, totals)


if __name__ == "__main__":
    run_cli(main)
