"""The byte format of the dataset's tars: GNU headers from a template, fixed owner, mode and time.

A header differs from sample to sample in its name, size and checksum alone, so those three fields
are patched into one that the standard library made: four times as fast as a `TarInfo` a member.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
from pathlib import Path
from types import TracebackType

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
UID_CHARS = 32
IMAGE_SUFFIX = ".image.jpg"
CONVERSATION_SUFFIX = ".conversation.json"
MAX_MEMBER_BYTES = 8**11 - 1
WRITE_BYTES = 4 << 20
_PADDING = bytes(BLOCK)


def padded(size: int) -> int:
    """Return `size` rounded up to whole tar blocks."""
    return -(-size // BLOCK) * BLOCK


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
    """Writes samples to a tar and hashes it in the same pass.

    Args:
        path: The file to write (a scratch name: the caller renames it).
    """

    def __init__(self, path: Path) -> None:
        self.offsets: list[int] = []
        self.size = 0
        self._image = HeaderTemplate(IMAGE_SUFFIX)
        self._conversation = HeaderTemplate(CONVERSATION_SUFFIX)
        self._digest = hashlib.sha256()
        self._stream = path.open("wb", buffering=0)
        self._pieces: list[bytes] = []
        self._pending = 0

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def add(self, uid: str, image: bytes, conversation: bytes) -> None:
        """Append one sample: its picture, then its conversation."""
        self.offsets.append(self.size)
        name = uid.encode("ascii")
        if len(name) != UID_CHARS or max(len(image), len(conversation)) > MAX_MEMBER_BYTES:
            raise ValueError(f"{uid!r}: not a uid of {UID_CHARS} characters, or a member above 8 GiB")
        self._put(self._image.header(name, len(image)))
        self._put_data(image)
        self._put(self._conversation.header(name, len(conversation)))
        self._put_data(conversation)
        if self._pending >= WRITE_BYTES:
            self._flush()

    def finish(self) -> str:
        """Close the tar with zero blocks to a whole record; return its SHA-256."""
        self.offsets.append(self.size)
        self._put(bytes(2 * BLOCK + -(self.size + 2 * BLOCK) % RECORD))
        self._flush()
        return self._digest.hexdigest()

    def _put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pending += len(data)
        self.size += len(data)

    def _put_data(self, data: bytes) -> None:
        self._put(data)
        self._put(_PADDING[: -len(data) % BLOCK])

    def _flush(self) -> None:
        block = b"".join(self._pieces)
        self._digest.update(block)
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(self._stream.fileno(), rest) :]
        self._pieces, self._pending = [], 0


def tar_index(offsets: list[int]) -> bytes:
    """Return Energon's `.tar.idx`: where each sample starts, then where the last one ends."""
    return struct.pack(f"{len(offsets)}Q", *offsets)
