"""Is this a JPEG that decodes to its last byte? The verdict of a full decode, at a third of its time.

Pillow's draft mode asks libjpeg for one value of each 8 x 8 block in grey. All compressed data is
still read, so truncation, lost markers and broken tables are found as in a full decode; what is
saved is the inverse transform. test_audit_jpeg.py compares both on thousands of damaged files.
"""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

from PIL import Image

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


class BadJpeg(Exception):
    """Not a JPEG, or not one that decodes to its end; the text says why."""


class JpegFacts(NamedTuple):
    """What the audit records of a sound JPEG."""

    width: int
    height: int
    mode: str
    near_constant: bool


def probe_jpeg(data: bytes, max_pixels: int = MAX_PIXELS) -> JpegFacts:
    """Decode `data` to its end in draft mode.

    Args:
        data: The file's bytes.
        max_pixels: Limit on width x height, checked in the header before anything is decoded.

    Raises:
        BadJpeg: A full decode would refuse the file, or it is too large.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            width, height = image.size
            if image.format != "JPEG":
                raise BadJpeg(f"the format {image.format}")
            if width * height > max_pixels:
                raise BadJpeg(f"{width} x {height} pixels, more than {max_pixels}")
            mode = image.mode
            image.draft("L", (max(width // 8, 1), max(height // 8, 1)))
            image.load()
            extrema = image.convert("L").getextrema() if image.mode != "L" else image.getextrema()
    except _REFUSALS as error:
        raise BadJpeg(f"{type(error).__name__}: {error}") from None
    return JpegFacts(width, height, mode, extrema[1] - extrema[0] <= NEAR_CONSTANT_LEVELS)
