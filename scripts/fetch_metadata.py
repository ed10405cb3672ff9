"""Fetch one pinned parquet of URLs and verify it four ways: bytes, SHA-256, rows, columns.

The verified file is kept in `<root>/fetched/metadata/` too (the same inode, no second copy), so that
a job that failed later, or a rerun after an edit of this program, does not transfer it again.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.file_pins import FilePin, check_revision
from shardwright.files import replacing, sole_writer, write_json
from shardwright.metadata import check_parquet, parse_columns
from shardwright.sources import Source
from shardwright.transfer import Patience, fetch_file


def _link_or_copy(origin: Path, target: Path) -> None:
    with replacing(target) as scratch:
        scratch.unlink()
        try:
            os.link(origin, scratch)
        except OSError:  # a file system without hard links
            shutil.copyfile(origin, scratch)


def fetch_metadata(
    source: Source,
    pin: FilePin,
    rows: int,
    columns: dict[str, str],
    patience: Patience,
    parquet: Path,
    receipt: Path,
) -> None:
    """Bring the parquet to `parquet`, then write `receipt`.

    Args:
        source: Hub or mirror.
        pin: The file's name, bytes and SHA-256.
        rows: The pinned row count.
        columns: Which column holds what (role → column).
        patience: Tries and waits of the transfer.
        parquet: Output, by rename.
        receipt: Output, last.

    Raises:
        BuildError: The file cannot be had, or is not what was pinned.
    """
    root = parquet.parent.parent
    store = root / "fetched" / parquet.parent.name
    stored = store / pin.file
    wait_s = patience.lock_wait_s
    with sole_writer(parquet, wait_s), sole_writer(receipt, wait_s):
        new = fetch_file(source, pin, stored, store, patience)
        check_parquet(stored, source.describe(pin.file), rows, columns)
        _link_or_copy(stored, parquet)
        write_json(
            receipt,
            {
                "file": pin.file,
                "bytes": pin.bytes,
                "rows": rows,
                "sha256": pin.sha256,
                "repo": source.repo,
                "revision": source.revision,
                "columns": columns,
            },
        )
    how = "fetched" if new else "already here"
    print(f"{pin.file}: {how}; {rows:,} rows, {pin.bytes:,} bytes, sha256 {pin.sha256} verified", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Parse the options and fetch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="`hub`, or a mirror: a folder or a file:// URL")
    parser.add_argument("--repo", required=True, help="dataset repository, owner/name")
    parser.add_argument("--revision", required=True, help="40 hex digits")
    parser.add_argument("--subfolder", default="", help="folder inside the repository or mirror")
    parser.add_argument("--columns", required=True, help="role=column pairs separated by spaces")
    parser.add_argument("--rows", type=int, required=True, help="pinned rows")
    parser.add_argument("--bytes", type=int, required=True, help="pinned size")
    parser.add_argument("--sha256", required=True, help="pinned SHA-256")
    parser.add_argument("--attempts", type=int, default=3, help="tries in a row without progress")
    parser.add_argument("--backoff-s", type=float, default=2.0, help="wait after a failed try; doubles")
    parser.add_argument("--window-s", type=float, default=60.0, help="patience with a near-silent sender")
    parser.add_argument("--lock-wait-s", type=float, default=3600.0, help="patience with another writer")
    parser.add_argument("--parquet", type=Path, required=True, help="output")
    parser.add_argument("--receipt", type=Path, required=True, help="output, written last")
    args = parser.parse_args(argv)
    check_revision(args.revision)
    fetch_metadata(
        Source(args.source, args.repo, args.revision, "dataset", args.subfolder),
        FilePin(args.parquet.name, args.bytes, args.sha256),
        args.rows,
        parse_columns(args.columns),
        Patience(args.attempts, args.backoff_s, args.window_s, args.lock_wait_s),
        args.parquet,
        args.receipt,
    )


if __name__ == "__main__":
    run_cli(main)
