"""Hold the audited set against what the build needs; fail where it falls short.

The evidence (audit/totals.json, audit/failures.tsv, the plots) belongs to jobs before this one,
so it stays on disk when a gate fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.audit_gates import Requirements, summarise
from shardwright.errors import BuildError, run_cli
from shardwright.files import read_json, sole_writer, write_json


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--totals", required=True, type=Path, help="JSON of audit_totals.py")
    parser.add_argument("--rows", required=True, type=int, help="rows of all pinned parquets")
    parser.add_argument("--total", required=True, type=int, help="config samples.total")
    parser.add_argument("--usual-percent", default="", help="config audit.usual_percent: LOW-HIGH, or empty")
    parser.add_argument("--dominant-share", type=float, default=0.5, help="config audit.dominant_share")
    parser.add_argument("--summary", required=True, type=Path, help="JSON to write when every gate passes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Judge the totals, print the verdict, and write the summary if every gate passes.

    Raises:
        BuildError: A gate failed.
    """
    args = parse_args(argv)
    totals = read_json(args.totals)
    required = Requirements(args.rows, args.total, args.usual_percent, args.dominant_share)
    summary = summarise(totals, required)
    print(f"verdict: {summary['verdict']}")
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    failed = [gate for gate in summary["gates"] if not gate["passed"]]
    if failed:
        raise BuildError(
            str(args.totals),
            found="; ".join(gate["found"] for gate in failed),
            expected="; ".join(gate["expected"] for gate in failed),
            next_step="; ".join(gate["next_step"] for gate in failed)
            + f". What failed and why: {args.totals.parent / 'failures.tsv'}",
        )
    with sole_writer(args.summary):
        write_json(args.summary, summary)


if __name__ == "__main__":
    run_cli(main)
