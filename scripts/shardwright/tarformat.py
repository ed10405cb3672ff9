"""The byte format of the dataset's tars: GNU headers from a template, fixed owner, mode and time.

A header differs from sample to sample in its name, size and checksum alone, so those three fields
are patched into one that the standard library made: four times as fast as a `TarInfo` a member.
"""

from __future__ import annotations

import hashlib
import struct
import tarfile
from pathlib import Path
from types import TracebackType

from shardwright.disk_writer import DiskWriter

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
UID_CHARS = 32
IMAGE_SUFFIX = ".image.jpg"
CONVERSATION_SUFFIX = ".conversation.json"
MAX_MEMBER_BYTES = 8**11 - 1
WRITE_BYTES = 1 << 20
_PADDING = bytes(BLOCK)


def padded(size: int) -> int:
    """Return `size` (a number or an array) rounded up to whole tar blocks."""
    return -(-size // BLOCK) * BLOCK


def sample_size(image_size: int, conversation_size: int) -> int:
    """Return the bytes of a sample with its headers, from its members' (numbers or arrays)."""
    return 2 * BLOCK + padded(image_size) + padded(conversation_size)


class HeaderTemplate:
    """Makes the header of `<uid><suffix>` for any uid of 32 ASCII characters and any size."""

    def __init__(self, suffix: str) -> None:
        info = tarfile.TarInfo("0" * UID_CHARS + suffix)
        header = info.tobuf(tarfile.GNU_FORMAT)
        self._name_to_size = header[UID_CHARS:124]
        self._time = header[136:148]
        self._rest = header[156:]
        blank = bytes(UID_CHARS) + self._name_to_size + bytes(12) + self._time + b" " * 8 + self._rest
        self._base_sum = sum(blank)

    def header(self, uid: bytes, size: int) -> bytes:
        """Return the 512 bytes that precede the member's data."""
        octal = b"%011o\0" % size
        checksum = self._base_sum + sum(uid) + sum(octal)
        return b"%b%b%b%b%06o\0 %b" % (uid, self._name_to_size, octal, self._time, checksum, self._rest)


class TarWriter:
    """Hashes samples and writes them to a tar, a megabyte at a time.

    Args:
        path: The file to write (a scratch name: the caller renames it).
    """

    def __init__(self, path: Path) -> None:
        self.offsets: list[int] = []
        self.size = 0
        self._image = HeaderTemplate(IMAGE_SUFFIX)
        self._conversation = HeaderTemplate(CONVERSATION_SUFFIX)
        self._digest = hashlib.sha256()
        self._file = DiskWriter(path)
        self._pieces: list[bytes | memoryview] = []
        self._written = 0

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, uid: str, image: bytes | memoryview, conversation: bytes) -> None:
        """Append one sample: its picture, then its conversation."""
        name = uid.encode("ascii")
        image_size, conversation_size = len(image), len(conversation)
        if len(name) != UID_CHARS or max(image_size, conversation_size) > MAX_MEMBER_BYTES:
            raise ValueError(f"{uid!r}: not a uid of {UID_CHARS} characters, or a member above 8 GiB")
        self.offsets.append(self.size)
        self._put(self._image.header(name, image_size), image)
        self._put(self._conversation.header(name, conversation_size), conversation)
        if self.size - self._written >= WRITE_BYTES:
            self._write()

    def finish(self) -> str:
        """Close the tar with zero blocks to a whole record; return its SHA-256.

        Raises:
            OSError: The disk is full, or failed.
        """
        self.offsets.append(self.size)
        end = bytes(2 * BLOCK + -(self.size + 2 * BLOCK) % RECORD)
        self._pieces.append(end)
        self.size += len(end)
        self._write()
        self._file.finish()
        return self._digest.hexdigest()

    def _put(self, header: bytes, data: bytes | memoryview) -> None:
        self._pieces += (header, data, _PADDING[: -len(data) % BLOCK])
        self.size += BLOCK + padded(len(data))

    def _write(self) -> None:
        data = b"".join(self._pieces)
        self._digest.update(data)
        self._file.write(data)
        self._pieces, self._written = [], self.size


def tar_index(offsets: list[int]) -> bytes:
    """Return Energon's `.tar.idx`: where each sample starts, then where the last one ends."""
    return struct.pack(f"{len(offsets)}Q", *offsets)
