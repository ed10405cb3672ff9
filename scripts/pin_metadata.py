"""Write the pin table of a folder of metadata parquets, for review and commit.

    pin_metadata.py --folder /data/my-urls --table config/pins/my-urls.tsv

One row a parquet, sorted by name: file, rows, bytes, SHA-256. Name the table in `metadata.pins` and
the folder in `metadata.source`, and the build refuses any other bytes from then on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.file_pins import write_table
from shardwright.files import sha256_file
from shardwright.layout import PIN_COLUMNS, read_pins
from shardwright.metadata import check_parquet, open_parquet, parse_columns


def pin_metadata(folder: Path, table: Path, columns: dict[str, str]) -> int:
    """Write the pin table of the parquets in `folder`; return their rows in all.

    Args:
        folder: Holds the parquets, directly.
        table: Output, by rename.
        columns: Which column holds what (role → column); each parquet is checked for them.

    Raises:
        BuildError: No parquet is there, one cannot be read, is empty or lacks a column.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise BuildError(
            str(folder),
            found="no .parquet file",
            expected="the parquets of URLs, directly in this folder",
            next_step="give the folder that holds them",
        )
    rows = []
    for path in paths:
        num_rows, _ = open_parquet(path, str(path))
        check_parquet(path, str(path), num_rows, columns)
        rows.append((path.name, num_rows, path.stat().st_size, sha256_file(path)))
    write_table(table, PIN_COLUMNS, rows)
    return sum(pin.rows for pin in read_pins(table))


def main(argv: list[str] | None = None) -> None:
    """Parse the options and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="holds the parquets")
    parser.add_argument("--table", type=Path, required=True, help="output")
    parser.add_argument(
        "--columns", default="url=url text=text uid=uid", help="role=column pairs that must be there"
    )
    args = parser.parse_args(argv)
    num_rows = pin_metadata(args.folder, args.table, parse_columns(args.columns))
    print(args.table.read_text(), end="")
    print(f"{args.table}: {num_rows:,} rows in all. Read it through, then commit it.")


if __name__ == "__main__":
    run_cli(main)
