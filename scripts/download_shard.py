"""Download the URLs of one shard and pack the pictures: img2dataset's tar, parquet and stats."""

from __future__ import annotations

import argparse

from shardwright.download.hashes import check_format
from shardwright.download.options import add_options, plan_of
from shardwright.download.rows import clean_rows, read_rows
from shardwright.download.shard import download_shard
from shardwright.errors import run_cli
from shardwright.files import sole_writer
from shardwright.hidden import hide_packages
from shardwright.metadata import parse_columns


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and download the shard."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    args = parser.parse_args(argv)
    plan = plan_of(args)
    columns = parse_columns(args.columns)
    with sole_writer(plan.target.tar):
        table, cleaned = clean_rows(read_rows(args.metadata, args.start, args.stop, columns))
        check_format(columns.get("sha256"), cleaned)
        download_shard(plan, table, cleaned)


if __name__ == "__main__":
    hide_packages("pandas")
    run_cli(main)
