"""Walk the headers of a raw tar: where each member's bytes are, and nothing left unexplained.

`tarfile` stops in silence at a damaged header and reads on after a missing end, so a shard can
lose samples without a word. This walk accepts what a tar writer of our tools makes (ustar, GNU,
pax; regular files) and names the byte at which anything else begins. It never reads payloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardwright.errors import BuildError
from shardwright.tar_walk import describe_usual, find_usual

BLOCK = 512
_WINDOW = 8 * BLOCK  # a member with its pax header as webdataset writes them, and the small member behind it
_ZERO_BLOCK = bytes(BLOCK)
_REGULAR = frozenset(b"0\x007")
_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK = b"xgLK"
_EXTENSIONS = frozenset(b"xgLK")
_KINDS = {"1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device"}
_KINDS |= {"5": "a folder", "6": "a pipe", "S": "a sparse file"}
_MAX_EXTENSION_BYTES = 1 << 20
_ANNOUNCED = "the member that the header before announces"


class Member(NamedTuple):
    """One regular file of a tar: its name and where its payload is."""

    name: str
    offset: int
    size: int


class BadTar(Exception):
    """A fault in the tar's structure; `where` names the byte or the member."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(f"{where}: found {found}; expected {expected}")
        self.where, self.found, self.expected = where, found, expected

    def as_build_error(self, path: Path, next_step: str) -> BuildError:
        """The same fault with the file and the way out."""
        return BuildError(
            f"{path} {self.where}", found=self.found, expected=self.expected, next_step=next_step
        )


def _number(field: bytes, offset: int) -> int:
    """Read a number field: octal digits, or base 256 for what those cannot hold."""
    if field[:-1].isdigit() and field[-1] in b"\0 " and not (b"8" in field or b"9" in field):
        return int(field[:-1], 8)
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    text = field.partition(b"\0")[0].strip() or b"0"
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise BadTar(f"byte {offset}", f"the number {field!r} in a header", "octal digits")
    return int(text, 8)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax_records(data: bytes, offset: int) -> dict[str, str]:
    """Parse pax records (`<length> <key>=<value>` and a newline, each)."""
    records = {}
    position = 0
    while position < len(data) and data[position]:
        digits, space, _ = data[position : position + 21].partition(b" ")
        end = position + (int(digits) if digits.isdigit() else 0)
        key, equals, value = data[position + len(digits) + 1 : end].partition(b"=")
        if not (space and equals and key and end <= len(data) and value.endswith(b"\n")):
            found = f"the pax record {data[position : position + 40]!r}"
            raise BadTar(f"byte {offset}", found, "`<length> <key>=<value>`")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        position = end
    return records


class _Walk:
    """The state between headers: a window on the file, and extensions for the next member."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.file_size = os.fstat(descriptor).st_size
        self.offset = 0
        self._window_start, self._window = 0, b""
        self._stamp = b"", 0
        self._usual = b""
        self._pax: dict[str, str] = {}
        self._pax_global: dict[str, str] = {}
        self._gnu_name: str | None = None

    def _read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; a member's headers cost one system call."""
        start = offset - self._window_start
        if start < 0 or start + size > len(self._window):
            self._window_start, start = offset, 0
            self._window = os.pread(self.descriptor, max(size, _WINDOW), offset)
        return self._window[start : start + size]

    def _check_header(self, block: bytes) -> None:
        """Refuse a block whose checksum, unsigned or (old writers) signed, is not the one it states."""
        unsigned = 256 + sum(block[:148]) + sum(block[156:])
        if block[148:156] != b"%06o\0 " % unsigned:  # the usual form; others are read as numbers
            stated = _number(block[148:156], self.offset)
            high_bytes = sum(byte > 127 for byte in block[:148] + block[156:])
            if stated not in (unsigned, unsigned - 256 * high_bytes):
                found = f"a header with checksum {unsigned}, which states {stated}"
                raise BadTar(f"byte {self.offset}", found, "an intact tar header")

    def members(self) -> Iterator[Member]:
        """Yield the members up to the end blocks."""
        while True:
            yield from self._usual_members()
            block = self._read(self.offset, BLOCK)
            if block == _ZERO_BLOCK:
                break
            if len(block) < BLOCK:
                expected = "a header or the end blocks (the tar is truncated)"
                raise BadTar(f"byte {self.offset}", "the end of the file", expected)
            self._check_header(block)
            size = _number(block[124:136], self.offset)
            if block[156] in _EXTENSIONS:
                self._take_extension(block, size)
            else:
                yield self._member(block, size)
        if self._pax or self._gnu_name is not None:
            raise BadTar(f"byte {self.offset}", "the end blocks", _ANNOUNCED)
        self._check_end()

    def _usual_members(self) -> Iterator[Member]:
        """Take the next members if their headers are those of the last but for name, size and time stamp.

        Nearly all are. webdataset puts a pax header before each, which holds the stamp alone.
        """
        while self._usual:
            found = find_usual(self.descriptor, self.offset, self.file_size, self._usual)
            for payload, size, name in found:
                self.offset = payload - BLOCK
                yield Member(_text(name), self._skip(size), size)
            if not found:
                return

    def _skip(self, size: int, name: str = "") -> int:
        """Return the offset of a payload of `size` bytes and move behind it."""
        start = self.offset + BLOCK
        if size < 0 or start + size > self.file_size:
            where = f"byte {self.offset}" + (f" member {name}" if name else "")
            left = max(self.file_size - start, 0)
            raise BadTar(where, f"{left} bytes", f"{size} bytes (the tar is truncated)")
        self.offset = start + (size + BLOCK - 1) // BLOCK * BLOCK
        return start

    def _take_extension(self, block: bytes, size: int) -> None:
        kind, offset = block[156], self.offset
        self._usual = b""  # until a member without it has been seen
        if size > _MAX_EXTENSION_BYTES:
            expected = f"at most {_MAX_EXTENSION_BYTES}"
            raise BadTar(f"byte {offset}", f"an extended header of {size} bytes", expected)
        data = self._read(self._skip(size), size)
        if kind == _PAX:
            records = _pax_records(data, offset)
            self._pax = records | self._pax
            if records.keys() == {"mtime"} and size < BLOCK:
                self._stamp = block, size
        elif kind == _PAX_GLOBAL:
            self._pax_global |= _pax_records(data, offset)
        elif kind == _GNU_NAME:
            self._gnu_name = _text(data)

    def _member(self, block: bytes, size: int) -> Member:
        name = _text(block[:100])
        if block[345]:
            name = f"{_text(block[345:500])}/{name}"
        if self._gnu_name is not None:
            name = self._gnu_name
        if self._pax or self._pax_global:
            records = self._pax_global | self._pax
            name = records.get("path", name)
            size = self._pax_size(records, size)
        stamp = self._stamp if self._pax else (b"", 0)
        is_usual = not (block[345] or self._gnu_name or self._pax_global) and self._pax.keys() <= {"mtime"}
        self._pax, self._gnu_name = {}, None
        if block[156] not in _REGULAR or name.endswith("/"):
            kind = "a folder" if name.endswith("/") else _KINDS.get(chr(block[156]), f"type {block[156]}")
            raise BadTar(f"byte {self.offset} member {name}", kind, "a regular file")
        self._usual = describe_usual(block, *stamp) if is_usual else b""
        return Member(name, self._skip(size, name), size)

    def _pax_size(self, records: dict[str, str], size: int) -> int:
        if any(key.startswith("GNU.sparse") for key in records):
            raise BadTar(f"byte {self.offset}", "a sparse file", "a regular file")
        text = records.get("size", str(size))
        if not text.isascii() or not text.isdigit():
            raise BadTar(f"byte {self.offset}", f"the pax size {text!r}", "decimal digits")
        return int(text)

    def _check_end(self) -> None:
        """The end is two zero blocks, and nothing but zeros behind them."""
        end = self.offset
        while end < self.file_size:
            piece = self._read(end, 1 << 16)
            if piece.count(0) != len(piece):
                raise BadTar(f"byte {end}", "data behind the end blocks", "zeros up to the end of the file")
            end += len(piece)
        if end - self.offset < 2 * BLOCK:
            found = f"{end - self.offset} zero bytes"
            raise BadTar(f"byte {self.offset}", found, "two end blocks (the tar is truncated)")


def walk_members(descriptor: int) -> Iterator[Member]:
    """Yield the members of the open tar, in their order.

    Args:
        descriptor: File descriptor of a seekable file; its position is left alone.

    Raises:
        BadTar: Not a tar, damaged, truncated, or with members that are no regular files.
    """
    walk = _Walk(descriptor)
    if walk.file_size < 2 * BLOCK:
        raise BadTar("byte 0", f"{walk.file_size} bytes", "a tar of 1,024 bytes or more")
    yield from walk.members()
