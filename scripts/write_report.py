"""Write one self-contained page about a build: what came in, what was kept, what was learned."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import replacing, sole_writer


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provenance", type=Path, required=True, help="provenance.json at the build's root")
    parser.add_argument("--run", required=True, help="name of the training run")
    parser.add_argument("--page", type=Path, required=True, help="HTML file to write")
    args = parser.parse_args(argv)
    from shardwright.report import render_report

    with sole_writer(args.page):
        page = render_report(args.provenance.parent, args.run)
        with replacing(args.page) as scratch:
            scratch.write_text(page, encoding="utf-8")
    print(f"report: {args.page}")


if __name__ == "__main__":
    run_cli(main)
