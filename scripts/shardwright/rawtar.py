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

BLOCK = 512
_WINDOW = 4 * BLOCK  # pax header, its records and the member's header, as webdataset writes them
_ZERO_BLOCK = bytes(BLOCK)
_REGULAR = frozenset(b"0\x007")
_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK = b"xgLK"
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device"}
_KINDS |= {b"5": "a folder", b"6": "a pipe", b"S": "a sparse file"}
_MAX_EXTENSION_BYTES = 1 << 20


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


def _number(field: bytes, where: str) -> int:
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    text = field.partition(b"\0")[0].strip()
    try:
        if b"_" in text:
            raise ValueError
        return int(text or b"0", 8)
    except ValueError:
        raise BadTar(where, f"the number {field!r} in a header", "octal digits") from None


def _checked_header(block: bytes, where: str) -> None:
    """Refuse a block whose checksum, unsigned or (old writers) signed, is not the one it states."""
    stated = _number(block[148:156], where)
    others = block[:148] + block[156:]
    unsigned = 256 + sum(others)
    if stated != unsigned and stated != unsigned - 256 * sum(byte > 127 for byte in others):
        raise BadTar(
            where, f"a header with checksum {unsigned}, which states {stated}", "an intact tar header"
        )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _pax_records(data: bytes, where: str) -> dict[str, str]:
    """Parse pax records (`<length> <key>=<value>` and a newline, each)."""
    records = {}
    position = 0
    while position < len(data) and data[position]:
        digits, space, _ = data[position : position + 21].partition(b" ")
        end = position + int(digits) if digits.isdigit() else 0
        key, equals, value = data[position + len(digits) + 1 : end].partition(b"=")
        if not (space and equals and key and end <= len(data) and value.endswith(b"\n")):
            raise BadTar(
                where, f"the pax record {data[position : position + 40]!r}", "`<length> <key>=<value>`"
            )
        records[_text(key)] = _text(value[:-1])
        position = end
    return records


class _Reader:
    """Reads headers through one window, so that a member costs one system call."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._start, self._window = 0, b""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer at the end of the file."""
        start = offset - self._start
        if start < 0 or start + size > len(self._window):
            self._start, self._window = offset, os.pread(self.descriptor, max(size, _WINDOW), offset)
            start = 0
        return self._window[start : start + size]


class _Walk:
    """The state between headers: extensions that apply to the next member."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self.offset = 0
        self._pax: dict[str, str] = {}
        self._pax_global: dict[str, str] = {}
        self._gnu_name: str | None = None
        self._last_good = b""

    def members(self) -> Iterator[Member]:
        """Yield the members up to the end blocks."""
        while True:
            where = f"byte {self.offset}"
            block = self.reader.read(self.offset, BLOCK)
            if block == _ZERO_BLOCK:
                break
            if len(block) < BLOCK:
                raise BadTar(
                    where, "the end of the file", "a header or the end blocks (the tar is truncated)"
                )
            if block != self._last_good:  # pax headers of neighbours are often the same bytes
                _checked_header(block, where)
                self._last_good = block
            kind = block[156]
            size = _number(block[124:136], where)
            if kind in (_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK):
                self._take_extension(kind, size, where)
            else:
                yield self._member(block, size, where)
        if self._pax or self._gnu_name is not None:
            raise BadTar(where, "the end blocks", "the member that the header before announces")
        self._check_end()

    def _span(self, size: int, where: str) -> int:
        """Return the offset of a payload of `size` bytes and move behind it."""
        start = self.offset + BLOCK
        if size < 0 or start + size > self.reader.size:
            raise BadTar(
                where, f"{max(self.reader.size - start, 0)} bytes", f"{size} bytes (the tar is truncated)"
            )
        self.offset = start + (size + BLOCK - 1) // BLOCK * BLOCK
        return start

    def _take_extension(self, kind: int, size: int, where: str) -> None:
        if size > _MAX_EXTENSION_BYTES:
            raise BadTar(where, f"an extended header of {size} bytes", f"at most {_MAX_EXTENSION_BYTES}")
        data = self.reader.read(self._span(size, where), size)
        if kind == _PAX:
            # The record that webdataset writes for each member, and the only one: a float mtime.
            if data[2:9] != b" mtime=" or data[:2] != b"%d" % size:
                self._pax = _pax_records(data, where)
        elif kind == _PAX_GLOBAL:
            self._pax_global |= _pax_records(data, where)
        elif kind == _GNU_NAME:
            self._gnu_name = _text(data.partition(b"\0")[0])

    def _member(self, block: bytes, size: int, where: str) -> Member:
        name = _text(block[:100].partition(b"\0")[0])
        prefix = _text(block[345:500].partition(b"\0")[0])
        if prefix:
            name = f"{prefix}/{name}"
        if self._gnu_name is not None:
            name = self._gnu_name
        if self._pax or self._pax_global:
            records = self._pax_global | self._pax
            name = records.get("path", name)
            size = _pax_size(records, size, f"{where} member {name}")
        self._pax, self._gnu_name = {}, None
        where = f"{where} member {name}"
        if block[156] not in _REGULAR or name.endswith("/"):
            kind = _KINDS.get(block[156:157], f"type {block[156:157]!r}")
            raise BadTar(where, "a folder" if name.endswith("/") else kind, "a regular file")
        return Member(name, self._span(size, where), size)

    def _check_end(self) -> None:
        """The end is two zero blocks, and nothing but zeros behind them."""
        end = self.offset
        while end < self.reader.size:
            piece = self.reader.read(end, 1 << 16)
            if piece.count(0) != len(piece):
                raise BadTar(f"byte {end}", "data behind the end blocks", "zeros up to the end of the file")
            end += len(piece)
        if end - self.offset < 2 * BLOCK:
            raise BadTar(
                f"byte {self.offset}",
                f"{end - self.offset} zero bytes",
                "two end blocks (the tar is truncated)",
            )


def _pax_size(records: dict[str, str], size: int, where: str) -> int:
    if any(key.startswith("GNU.sparse") for key in records):
        raise BadTar(where, "a sparse file", "a regular file")
    text = records.get("size", str(size))
    if not text.isascii() or not text.isdigit():
        raise BadTar(where, f"the pax size {text!r}", "decimal digits")
    return int(text)


def walk_members(descriptor: int) -> Iterator[Member]:
    """Yield the members of the open tar, in their order.

    Args:
        descriptor: File descriptor of a seekable file; its position is left alone.

    Raises:
        BadTar: Not a tar, damaged, truncated, or with members that are no regular files.
    """
    reader = _Reader(descriptor)
    if reader.size < 2 * BLOCK:
        raise BadTar("byte 0", f"{reader.size} bytes", "a tar of 1,024 bytes or more")
    yield from _Walk(reader).members()
