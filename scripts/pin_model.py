"""Write the pin table of a model repository at one revision, for review and commit.

    pin_model.py --repo Qwen/Qwen3-VL-8B-Instruct --revision <40 hex digits> \
        --table config/pins/models/qwen3-vl-8b.tsv

Sizes and SHA-256 of large files (LFS) are what the hub's own listing says at that revision; small
files, which git keeps without a SHA-256, are transferred once and hashed here. Nothing is trusted by
that: read the table, compare the large digests with the repository's pages, and commit it; from then
on each fetch is checked against it.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.file_pins import COLUMNS, FilePin, check_revision, write_table
from shardwright.sources import HUB, Source, TransientFault

SKIPPED = ("*.md", ".*", "*/.*", "*.gitattributes", "*.png", "*.jpg", "*.gif", "*.pdf", "LICENSE*")


def wanted(name: str, skipped: list[str]) -> bool:
    """Say whether a file belongs to the model: neither documentation nor hidden, nor skipped by name."""
    return not any(fnmatch.fnmatch(name, pattern) for pattern in (*SKIPPED, *skipped))


def pin_model(repo: str, revision: str, table: Path, skipped: list[str]) -> list[FilePin]:
    """Write the pin table of `repo` at `revision`.

    Args:
        repo: owner/name on the hub.
        revision: 40 hex digits.
        table: Output, by rename.
        skipped: Name patterns to leave out, beside documentation and hidden files.

    Raises:
        BuildError: The hub refuses or cannot be reached, or nothing is left to pin.
    """
    from shardwright.hub import list_files, read_small

    check_revision(revision)
    source = Source(HUB, repo, revision, "model")
    try:
        pins = [
            FilePin(
                listed.file,
                listed.bytes,
                listed.sha256 or hashlib.sha256(read_small(source, listed)).hexdigest(),
            )
            for listed in list_files(source)
            if wanted(listed.file, skipped)
        ]
    except TransientFault as fault:
        raise BuildError(
            f"{repo}@{revision}",
            found=str(fault),
            expected="an answer of the hub",
            next_step="run the same command again",
        ) from fault
    if not pins:
        raise BuildError(
            f"{repo}@{revision}",
            found="no file to pin",
            expected="the files of a model",
            next_step="check the repository, or skip less",
        )
    write_table(table, COLUMNS, [(pin.file, pin.bytes, pin.sha256) for pin in pins])
    return pins


def main(argv: list[str] | None = None) -> None:
    """Parse the options and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", required=True, help="model repository, owner/name")
    parser.add_argument("--revision", required=True, help="40 hex digits")
    parser.add_argument("--table", type=Path, required=True, help="output")
    parser.add_argument("--skip", nargs="*", default=[], help="more name patterns to leave out")
    args = parser.parse_args(argv)
    pins = pin_model(args.repo, args.revision, args.table, args.skip)
    for pin in pins:
        print(f"{pin.sha256}  {pin.bytes:>14,}  {pin.file}")
    total = sum(pin.bytes for pin in pins)
    print(f"{args.table}: {len(pins)} files, {total:,} bytes. Read it through, then commit it.")


if __name__ == "__main__":
    run_cli(main)
