"""Many usual members of a tar at once; `tar_walk.c` does the work.

Without it, and for every member that it leaves, `rawtar.py` reads the headers: members and faults are
the same with it and without.
"""

from __future__ import annotations

import ctypes
import functools
import struct

from shardwright.native import load_native

_BATCH = 256
_MEMBER = struct.Struct("qq104s")
_USUAL = struct.Struct("ii32s512s512s")


def describe_usual(header: bytes, stamp: bytes = b"", stamp_size: int = 0) -> bytes:
    """Return what members share, in the layout of the C source.

    Args:
        header: The header of one of them.
        stamp: The pax header before it, which announces a time stamp alone; nothing if there is none.
        stamp_size: Bytes of the pax record behind that, below a tar block.
    """
    record = b"%d mtime=" % stamp_size
    return _USUAL.pack(stamp_size, len(record), record, stamp, header)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled walk, if there is one."""
    found = load_native(__file__)
    if found:
        found.walk.argtypes = (
            *(ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int),
        )
    return found


def find_usual(descriptor: int, offset: int, file_size: int, usual: bytes) -> list[tuple[int, int, bytes]]:
    """Return offset and size of the payload, and the name field, of the next members that are like `usual`.

    Args:
        descriptor: File descriptor of the tar.
        offset: Where the headers of the first one should be.
        file_size: Bytes of the tar.
        usual: What they share, as `describe_usual` says it.
    """
    native = library()
    if native is None:
        return []
    members = ctypes.create_string_buffer(_BATCH * _MEMBER.size)
    num_found = native.walk(descriptor, offset, file_size, usual, members, _BATCH)
    return list(_MEMBER.iter_unpack(members[: num_found * _MEMBER.size]))
