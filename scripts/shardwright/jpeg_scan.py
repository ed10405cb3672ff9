"""The compressed data of baseline JPEGs, checked code by code in a fraction of the time of a draft decode.

`jpeg_scan.c` does the work; `make env` compiles it where there is a C compiler. Without it, and for
every file that it does not call sound (progressive, damaged, unusual), Pillow decides, so that the
verdicts are the same with it and without.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

from shardwright.native import load_native

_MIN_SIDE, _MAX_SIDE = 8, 65_500  # libjpeg refuses a longer one
_MAX_PIXELS = 1 << 24  # sums of first coefficients stay in 32 bits, where libjpeg checks that they do
_SCAN_START, _FRAME_START = b"\xff\xda", b"\xff\xc0"
_TABLES_AND_TEXT = frozenset((0xC0, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2, 0xED, 0xFE))
_COMPONENT_IDS = (b"\1", b"\1\2\3")


class Header(NamedTuple):
    """What precedes the compressed data; files of one encoder differ in the size alone.

    `key` is where the frame was found, and all bytes but the size: two files of one key have one
    structure, if the frame is where it seems to be, which `make_plan` finds out.
    """

    key: tuple[int, bytes]
    width: int
    height: int
    end: int

    @property
    def num_pixels(self) -> int:
        """Width times height."""
        return self.width * self.height

    @property
    def is_scannable(self) -> bool:
        """Whether the scan takes pictures of this size."""
        sides = self.width, self.height
        return min(sides) >= _MIN_SIDE and max(sides) <= _MAX_SIDE and self.num_pixels <= _MAX_PIXELS


class _Plan(ctypes.Structure):
    _fields_ = (
        ("num_components", ctypes.c_int32),
        ("restart", ctypes.c_int32),
        ("quantiser", ctypes.c_int32),
        ("h", ctypes.c_int32 * 3),
        ("v", ctypes.c_int32 * 3),
        ("dc", ctypes.c_void_p * 3),
        ("ac", ctypes.c_void_p * 3),
    )


class Plan(NamedTuple):
    """How to read the data behind a header: sampling, the quantiser's first step, pointers to the tables."""

    native: _Plan
    tables: tuple[ctypes.Array, ...]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled scan, if there is one."""
    found = load_native(__file__)
    if found is None:
        return None
    found.table_size.restype = ctypes.c_size_t
    found.make_table.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
    sizes, sides = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int32)
    files = ctypes.POINTER(ctypes.c_char_p)
    found.scan.argtypes = (ctypes.c_int, files, sizes, sizes, sides, sides, ctypes.c_void_p, sides)
    return found


def split_header(data: bytes) -> Header | None:
    """Find the header of a baseline JPEG; what it finds in another file is no plan's header."""
    frame = data.find(_FRAME_START)
    start = data.find(_SCAN_START, frame + 9)
    if frame < 0 or start < 0:
        return None
    end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    if end > len(data):
        return None
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    width = int.from_bytes(data[frame + 7 : frame + 9], "big")
    return Header((frame, data[: frame + 5] + data[frame + 9 : end]), width, height, end)


def _segments(data: bytes, header: Header) -> dict[int, list[bytes]] | None:
    """Return the segments of a header by marker, or nothing if one is out of place or unusual."""
    found: dict[int, list[bytes]] = {}
    (frame, _), position, end = header.key, 2, header.end
    while position + 4 <= end:
        marker, size = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position] != 0xFF or marker not in _TABLES_AND_TEXT or size < 2:
            return None
        if (marker == 0xC0) != (position == frame) or (marker == 0xDA) != (position + 2 + size == end):
            return None
        found.setdefault(marker, []).append(data[position + 4 : position + 2 + size])
        position += 2 + size
    return found if position == end and {0xC0, 0xDA} <= found.keys() else None


def _quantisers(segments: list[bytes]) -> dict[int, int] | None:
    """Return the first step of each quantiser by its number; nothing if one has sixteen bits."""
    found = {}
    for segment in segments:
        if len(segment) % 65 or any(segment[start] > 3 for start in range(0, len(segment), 65)):
            return None
        found |= {segment[start]: segment[start + 1] for start in range(0, len(segment), 65)}
    return found


@functools.lru_cache(maxsize=64)
def _table(counts: bytes, values: bytes, is_ac: bool) -> ctypes.Array | None:
    native = library()
    assert native is not None
    table = ctypes.create_string_buffer(native.table_size())
    return table if native.make_table(counts, values, is_ac, table) else None


def _tables(segments: list[bytes]) -> dict[int, ctypes.Array] | None:
    """Return the Huffman tables by class and number; nothing if one is malformed."""
    found = {}
    for segment in segments:
        position = 0
        while position < len(segment):
            counts = segment[position + 1 : position + 17]
            end = position + 17 + sum(counts)
            if len(counts) < 16 or end > len(segment) or segment[position] & 0xEC:
                return None
            table = _table(counts, segment[position + 17 : end], segment[position] >= 0x10)
            if table is None:
                return None
            found[segment[position]] = table
            position = end
    return found


def make_plan(data: bytes, header: Header) -> Plan | None:
    """Plan the scan of all files with this header, or return nothing where only Pillow will do.

    Args:
        data: One such file.
        header: Its header.
    """
    segments = _segments(data, header)
    if segments is None or data[:2] != b"\xff\xd8":
        return None
    frame, start = segments[0xC0][0], segments[0xDA][0]
    quantisers, tables = _quantisers(segments.get(0xDB, [])), _tables(segments.get(0xC4, []))
    num = len(frame) // 3 - 2
    ids, sampling, chosen = frame[6::3], frame[7::3], frame[8::3]
    if not quantisers or not tables or frame[0] != 8 or frame[5:6] != bytes([num]):
        return None
    if len(frame) != 6 + 3 * num or ids not in _COMPONENT_IDS or chosen[0] not in quantisers:
        return None
    if len(start) != 4 + 2 * num or start[1:-3:2] != ids or start[-3:] != b"\0\x3f\0" or start[0] != num:
        return None
    blocks = [(1, 1)] if num == 1 else [(byte >> 4, byte & 15) for byte in sampling]
    if (
        any(h < 1 or v < 1 or blocks[0][0] % h or blocks[0][1] % v for h, v in blocks)
        or sum(h * v for h, v in blocks) > 10
    ):
        return None
    used = [(byte >> 4, 0x10 | byte & 15) for byte in start[2:-3:2]]
    if any(number not in tables for pair in used for number in pair):
        return None
    restart = int.from_bytes(segments[0xDD][-1], "big") if 0xDD in segments else 0
    native = _Plan(num_components=num, restart=restart, quantiser=quantisers[chosen[0]])
    for c, ((h, v), (dc, ac)) in enumerate(zip(blocks, used, strict=True)):
        native.h[c], native.v[c] = h, v
        native.dc[c], native.ac[c] = ctypes.addressof(tables[dc]), ctypes.addressof(tables[ac])
    return Plan(native, tuple(tables.values()))


def scan(datas: Sequence[bytes], headers: Sequence[Header], plan: Plan) -> list[tuple[int, int] | None]:
    """Walk the compressed data of files whose headers are the plan's but for the size.

    Args:
        datas: The files.
        headers: Their headers, scannable.
        plan: How to read them.

    Returns:
        For each file the darkest and the lightest mean grey of an 8 x 8 block, 0 to 255, if the data are
        sound to the end of the file; else nothing.
    """
    native = library()
    assert native is not None
    _, widths, heights, ends = zip(*headers, strict=True)
    num = len(datas)
    many_int32, many_size = ctypes.c_int32 * num, ctypes.c_size_t * num
    greys = many_int32(*[-1] * num)
    files = (ctypes.c_char_p * num)(*datas)
    starts, sizes = many_size(*ends), many_size(*map(len, datas))
    sides = many_int32(*widths), many_int32(*heights)
    native.scan(num, files, starts, sizes, *sides, ctypes.byref(plan.native), greys)
    return [None if grey < 0 else divmod(grey, 256) for grey in greys]
