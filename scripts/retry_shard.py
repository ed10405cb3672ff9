"""Ask again for the URLs of a finished shard whose failure may have passed, and merge what comes."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.download.options import add_options, plan_of
from shardwright.download.retry import retry_shard
from shardwright.errors import run_cli
from shardwright.files import sole_writer, write_json
from shardwright.hidden import hide_packages
from shardwright.metadata import parse_columns


def main(argv: list[str] | None = None) -> None:
    """Parse the command line, retry the shard, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--report", type=Path, required=True, help="output: <root>/retries/<shard>.json")
    args = parser.parse_args(argv)
    plan = plan_of(args)
    columns = parse_columns(args.columns)
    with sole_writer(plan.target.tar):
        report = retry_shard(plan, args.metadata, (args.start, args.stop), columns)
    write_json(args.report, report)


if __name__ == "__main__":
    hide_packages("pandas")
    run_cli(main)
