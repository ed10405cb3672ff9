"""Fetch the pinned files of a model repository and verify each one (bytes and SHA-256).

Files go into a folder that Snakemake does not own, one by one and by rename: a killed fetch keeps the
finished files and the parts of the others. The receipt, written last, is the only declared output.
"""

from __future__ import annotations

import argparse
import shutil
import signal
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.file_pins import FilePin, check_revision, read_file_pins
from shardwright.files import find_path, sole_writer, write_json
from shardwright.sources import Source
from shardwright.transfer import Patience, fetch_files


def refuse_strays(folder: Path, pins: list[FilePin]) -> None:
    """Refuse files in the model's folder that the table does not pin: a loader may pick them up.

    Raises:
        BuildError: There is one.
    """
    pinned = {folder / pin.file for pin in pins}
    strays = sorted(path for path in folder.rglob("*") if not path.is_dir() and path not in pinned)
    if strays:
        raise BuildError(
            str(strays[0]),
            found=f"{len(strays)} file(s) that the pin table does not name",
            expected=f"only the {len(pins)} pinned files in {folder}",
            next_step="remove them, or pin them (scripts/pin_model.py)",
        )


def read_table(files: str, model: str, repo: str, revision: str) -> list[FilePin]:
    """Read the model's pin table; say how to write it where there is none.

    Args:
        files: Path of the table, or empty.
        model: Name of the model, for the table's.
        repo: Repository on the hub.
        revision: 40 hex digits.

    Raises:
        BuildError: No table is named, or it is malformed.
    """
    if not files or not find_path(files).is_file():
        table = files or f"config/pins/models/{model}.tsv"
        raise BuildError(
            f"model {repo}",
            found=f"no pin table {table}" if files else "no pin table (`files` is empty)",
            expected="the bytes and SHA-256 of each file at the revision, reviewed and committed",
            next_step=f"run `python scripts/pin_model.py --repo {repo} --revision {revision} "
            f"--table {table}`, read it through, and name it in the model's config (`files: {table}`)",
        )
    return read_file_pins(find_path(files))


def fetch_model(
    source: Source, pins: list[FilePin], patience: Patience, folder: Path, receipt: Path, num_threads: int
) -> None:
    """Bring the pinned files into `folder`, then write `receipt`.

    Raises:
        BuildError: A file cannot be had or is not what was pinned; or a stray file is in the folder.
    """
    partials = receipt.parent / "partial"
    with sole_writer(receipt, patience.lock_wait_s, receipt.parents[2]):
        folder.mkdir(parents=True, exist_ok=True)
        refuse_strays(folder, pins)
        new = fetch_files(source, pins, folder, partials, patience, num_threads)
        shutil.rmtree(partials, ignore_errors=True)
        write_json(
            receipt,
            {
                "repo": source.repo,
                "revision": source.revision,
                "files": {pin.file: {"bytes": pin.bytes, "sha256": pin.sha256} for pin in pins},
            },
        )
    total = sum(pin.bytes for pin in pins)
    print(
        f"{source.repo}: {len(pins)} files, {total:,} bytes, all verified; "
        f"{new} fetched, {len(pins) - new} already here",
        flush=True,
    )


def main(argv: list[str] | None = None) -> None:
    """Parse the options and fetch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="`hub`, or a mirror: a folder or a file:// URL")
    parser.add_argument("--repo", required=True, help="model repository, owner/name")
    parser.add_argument("--revision", required=True, help="40 hex digits")
    parser.add_argument("--files", required=True, help="pin table: file, bytes, sha256")
    parser.add_argument("--attempts", type=int, default=3, help="tries in a row without progress")
    parser.add_argument("--backoff-s", type=float, default=2.0, help="wait after a failed try; doubles")
    parser.add_argument("--threads", type=int, default=4, help="files transferred at a time")
    parser.add_argument("--folder", type=Path, required=True, help="where the files go")
    parser.add_argument("--receipt", type=Path, required=True, help="output, written last")
    args = parser.parse_args(argv)
    check_revision(args.revision)
    pins = read_table(args.files, args.receipt.parent.name, args.repo, args.revision)
    fetch_model(
        Source(args.source, args.repo, args.revision, "model"),
        pins,
        Patience(args.attempts, args.backoff_s),
        args.folder,
        args.receipt,
        args.threads,
    )


if __name__ == "__main__":
    # Ctrl-C ends all transfers at once instead of waiting for the threads; the parts are kept.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run_cli(main)
