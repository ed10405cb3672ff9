"""Pinned files: what a repository must hold, by name, bytes and SHA-256.

The table of a model is tab-separated with the columns `file bytes sha256`; that of the metadata
parquets has `rows` too (`layout.read_pins`). Standard library only.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shardwright.errors import BuildError
from shardwright.files import find_path, replacing, sha256_file

COLUMNS = ("file", "bytes", "sha256")
REVISION = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class FilePin:
    """One file of a repository: its path there, its size, its SHA-256 (64 hex digits)."""

    file: str
    bytes: int
    sha256: str


def check_revision(revision: str) -> None:
    """Refuse anything but an immutable commit.

    Raises:
        BuildError: `revision` is not 40 lowercase hex digits.
    """
    if not REVISION.fullmatch(revision):
        raise BuildError(
            f"revision {revision}",
            found="the name of a branch or tag, or a shortened commit",
            expected="40 lowercase hex digits (an immutable commit; a branch or tag can move)",
            next_step="look the commit up in the repository's history and give it in full",
        )


def _is_plain_path(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and str(path) == name


def _file_pin(row: dict[str, str | None], where: str) -> FilePin:
    name, size, digest = (row[column] or "" for column in COLUMNS)
    found = expected = ""
    if not _is_plain_path(name) or name.startswith("."):
        found, expected = f"file {name!r}", "a path inside the repository, not hidden, without `..`"
    elif not size.isdecimal():
        found, expected = f"bytes {size!r}", "a whole number"
    elif not re.fullmatch(r"[0-9a-f]{64}", digest):
        found, expected = f"sha256 {digest!r}", "64 lowercase hex digits"
    if found:
        raise BuildError(where, found=found, expected=expected, next_step="correct the row, or write the "
                         "table anew (scripts/pin_model.py)")  # fmt: skip
    return FilePin(name, int(size), digest)


def read_rows(path: Path, columns: tuple[str, ...], kind: str, next_step: str) -> list[dict[str, str]]:
    """Read a tab-separated table with exactly these columns; lines that begin with # are left out.

    Args:
        path: The table.
        columns: Its header.
        kind: What it is called when it is missing.
        next_step: What to do when it is missing.

    Raises:
        BuildError: The table is missing or has another header.
    """
    if not path.is_file():
        expected = f"a tab-separated {kind} with the columns " + " ".join(columns)
        found = "a folder" if path.is_dir() else "no such file"
        raise BuildError(str(path), found=found, expected=expected, next_step=next_step)
    with path.open(newline="") as stream:
        reader = csv.DictReader((line for line in stream if not line.startswith("#")), delimiter="\t")
        if tuple(reader.fieldnames or ()) != columns:
            raise BuildError(
                str(path),
                found=f"columns {reader.fieldnames}",
                expected=" ".join(columns) + ", separated by tabs",
                next_step="correct the header line",
            )
        return list(reader)


def read_file_pins(path: Path) -> list[FilePin]:
    """Read a table of pinned files.

    Raises:
        BuildError: The table is missing, empty, or a row is malformed or doubled.
    """
    next_step = "write it with scripts/pin_model.py, read it through, and commit it"
    rows = read_rows(path, COLUMNS, "table", next_step)
    pins = [_file_pin(row, f"{path} row {number}") for number, row in enumerate(rows, start=1)]
    names = [pin.file for pin in pins]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if not pins or doubled:
        raise BuildError(
            str(path),
            found=f"the file {doubled[0]} twice" if doubled else "no rows",
            expected="one row for each file",
            next_step="write the table with scripts/pin_model.py, read it through, and commit it",
        )
    return pins


def write_table(path: Path, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Write a tab-separated table with a header line, by rename."""
    lines = ["\t".join(map(str, row)) for row in [columns, *rows]]
    with replacing(path) as scratch:
        scratch.write_text("\n".join(lines) + "\n")


def table_digest(text: str) -> str:
    """Return the SHA-256 of the pin table that a config value names; empty while there is none.

    A rule carries it in its params, so that a changed table reruns the fetch.
    """
    path = find_path(text) if text else None
    return sha256_file(path) if path and path.is_file() else ""
