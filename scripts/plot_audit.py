"""Draw what became of every URL, and the sizes of the usable samples."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import read_json, sole_writer


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--totals", required=True, type=Path, help="JSON of audit_totals.py")
    parser.add_argument("--outcomes", required=True, type=Path, help="SVG to write: what became of every URL")
    parser.add_argument("--shapes", required=True, type=Path, help="SVG to write: the usable samples' sizes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Draw the audit's pictures."""
    args = parse_args(argv)
    from shardwright.audit_plots import write_plots

    with sole_writer(args.outcomes), sole_writer(args.shapes):
        write_plots(read_json(args.totals), args.outcomes, args.shapes)


if __name__ == "__main__":
    run_cli(main)
