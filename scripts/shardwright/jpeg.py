"""Is this a JPEG that decodes to its last byte? The verdict of a full decode, in a fraction of its time.

Pillow's draft mode asks libjpeg for one value of each 8 x 8 block in grey. All compressed data is
still read, so truncation, lost markers and broken tables are found as in a full decode; what is
saved is the inverse transform. test_audit_jpeg.py compares both on thousands of damaged files.

Pictures of one encoder share the bytes of their headers but for the size. Once Pillow has accepted
such a header, the data behind it go to a compiled scan (jpeg_scan.py), if there is one: five times
as fast. Only an acceptance is taken from there: a file that fails goes the whole way through Pillow,
which has the last word and the reason.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from shardwright.jpeg_scan import Header, Plan, library, make_plan, scan, split_header

# Far above any picture of a raw shard; a progressive one of this size decodes in 0.4 GB.
MAX_PIXELS = 1 << 26
# A picture whose darkest and lightest 8 x 8 blocks differ by no more than this shows nothing.
NEAR_CONSTANT_LEVELS = 3
_REFUSALS = (
    OSError,  # unidentified, truncated, broken data stream
    SyntaxError,
    ValueError,
    IndexError,
    TypeError,
    KeyError,
    EOFError,
    OverflowError,
    ZeroDivisionError,
    struct.error,
    Image.DecompressionBombError,  # none of the above: it derives from Exception alone
)
_MAX_KNOWN = 4096


class BadJpeg(Exception):
    """Not a JPEG, or not one that decodes to its end; the text says why."""


class JpegFacts(NamedTuple):
    """What the audit records of a sound JPEG."""

    width: int
    height: int
    mode: str
    near_constant: bool


class _Known:
    """A header that Pillow accepted, in files of any size; how to scan them is found at the second one."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._plan: Plan | None = None
        self._planned = False

    def scan(self, datas: Sequence[bytes], headers: Sequence[Header]) -> list[tuple[int, int] | None]:
        """Return the least and greatest grey of each file whose data are sound."""
        if not self._planned:
            self._plan, self._planned = make_plan(datas[0], headers[0]), True
        return scan(datas, headers, self._plan) if self._plan else [None] * len(datas)


_known: dict[tuple[int, bytes], _Known] = {}


def _decode_draft(data: bytes, max_pixels: int) -> tuple[JpegFacts, str]:
    """Let Pillow decode the file; return what it shows and the mode it was decoded in."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        (width, height), mode = image.size, image.mode
        if image.format != "JPEG":
            raise BadJpeg(f"the format {image.format}")
        if width * height > max_pixels:
            raise BadJpeg(f"{width} x {height} pixels, more than {max_pixels}")
        if not _has_fractional_sampling(image):
            image.draft("L", (max(width // 8, 1), max(height // 8, 1)))
        image.load()
        extrema = (image if image.mode == "L" else image.convert("L")).getextrema()
        return _facts(width, height, mode, extrema), image.mode


def _has_fractional_sampling(image: Image.Image) -> bool:
    """Whether a component is sampled 2 : 3, say, which libjpeg decodes in draft mode alone."""
    across, down = zip(*((h, v) for _, h, v, _ in image.layer), strict=True)
    return any(max(across) % h for h in across) or any(max(down) % v for v in down)


def _facts(width: int, height: int, mode: str, extrema: tuple[int, int]) -> JpegFacts:
    return JpegFacts(width, height, mode, extrema[1] - extrema[0] <= NEAR_CONSTANT_LEVELS)


def _decode(data: bytes, header: Header | None, max_pixels: int) -> JpegFacts | BadJpeg:
    """Let Pillow decide; remember the header of a sound file."""
    try:
        facts, draft_mode = _decode_draft(data, max_pixels)
    except BadJpeg as fault:
        return BadJpeg(str(fault))  # without the traceback, which keeps `data`
    except _REFUSALS as error:
        return BadJpeg(f"{type(error).__name__}: {error}")
    if header and draft_mode == "L" and len(_known) < _MAX_KNOWN:
        _known.setdefault(header.key, _Known(facts.mode))
    return facts


def probe_jpegs(datas: Sequence[bytes], max_pixels: int = MAX_PIXELS) -> list[JpegFacts | BadJpeg]:
    """Decode files to their end in draft mode, or scan them to their end, many at a time.

    Args:
        datas: The bytes of the files.
        max_pixels: Limit on width x height, checked in the header before anything is decoded.

    Returns:
        For each file what it shows, or why a full decode would refuse it.
    """
    headers = [split_header(data) if library() else None for data in datas]
    found: list[JpegFacts | BadJpeg | None] = [None] * len(datas)
    by_key: dict[tuple[int, bytes], list[int]] = {}
    for number, header in enumerate(headers):
        if header and header.is_scannable and header.num_pixels <= max_pixels:
            by_key.setdefault(header.key, []).append(number)
    for key, numbers in by_key.items():
        while numbers and key not in _known:
            number = numbers.pop(0)
            found[number] = _decode(datas[number], headers[number], max_pixels)
        if numbers:
            known, of_key = _known[key], [headers[number] for number in numbers]
            extrema = known.scan([datas[number] for number in numbers], of_key)
            for number, header, extremes in zip(numbers, of_key, extrema, strict=True):
                if extremes:
                    found[number] = _facts(header.width, header.height, known.mode, extremes)
    return [
        facts or _decode(data, header, max_pixels)
        for facts, data, header in zip(found, datas, headers, strict=True)
    ]
