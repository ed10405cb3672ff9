"""Is this a JPEG that decodes to its last byte? The verdict of a full decode, at a third of its time.

Pillow's draft mode asks libjpeg for one value of each 8 x 8 block in grey. All compressed data is
still read, so truncation, lost markers and broken tables are found as in a full decode; what is
saved is the inverse transform. test_audit_jpeg.py compares both on thousands of damaged files.

Parsing a header in Python costs a sixth of that. Pictures of one encoder and size share the very
bytes of their headers, so what Pillow made of a header is remembered, and a file with the same one
goes straight to the decoder. Only an acceptance is taken from there: a file that fails goes the
whole way through Pillow, which has the last word and the reason.
"""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

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
_SCAN_START = b"\xff\xda"
_SCAN_HEADER_BYTES = 14  # of a picture with three components; one with fewer is shorter
_FEED_BYTES = 65536  # what Pillow hands to its decoders at a time
_MAX_KNOWN = 4096


class BadJpeg(Exception):
    """Not a JPEG, or not one that decodes to its end; the text says why."""


class JpegFacts(NamedTuple):
    """What the audit records of a sound JPEG."""

    width: int
    height: int
    mode: str
    near_constant: bool


class _Header(NamedTuple):
    """What Pillow made of a header: the picture, and how it would start its decoder."""

    width: int
    height: int
    mode: str
    draft_size: tuple[int, int]
    tile: Any
    decoder_config: tuple[int, int]


_known: dict[bytes, _Header] = {}


def _open_draft(data: bytes, max_pixels: int) -> tuple[Image.Image, _Header, int]:
    """Let Pillow read the header; return the picture in draft mode, its header and where that ends."""
    stream = io.BytesIO(data)
    image = Image.open(stream, formats=("JPEG",))
    (width, height), mode = image.size, image.mode
    if image.format != "JPEG":
        raise BadJpeg(f"the format {image.format}")
    if width * height > max_pixels:
        raise BadJpeg(f"{width} x {height} pixels, more than {max_pixels}")
    image.draft("L", (max(width // 8, 1), max(height // 8, 1)))
    header = _Header(width, height, mode, image.size, image.tile[0], image.decoderconfig)
    return image, header, stream.tell()


def _decode_known(data: bytes, header: _Header) -> tuple[int, int] | None:
    """Decode a file whose header is known; return the least and greatest grey, or nothing if it fails."""
    name, extents, _, args = header.tile
    picture = Image.core.new("L", header.draft_size)
    decoder = Image._getdecoder("L", name, args, header.decoder_config)
    decoder.setimage(picture, extents)
    rest = b""
    for start in range(0, len(data), _FEED_BYTES):
        rest += data[start : start + _FEED_BYTES]
        used, error = decoder.decode(rest)
        if used < 0:
            return picture.getextrema() if error >= 0 else None
        rest = rest[used:]
    return None


def _facts(header: _Header, extrema: tuple[int, int]) -> JpegFacts:
    near_constant = extrema[1] - extrema[0] <= NEAR_CONSTANT_LEVELS
    return JpegFacts(header.width, header.height, header.mode, near_constant)


def probe_jpeg(data: bytes, max_pixels: int = MAX_PIXELS) -> JpegFacts:
    """Decode `data` to its end in draft mode.

    Args:
        data: The file's bytes.
        max_pixels: Limit on width x height, checked in the header before anything is decoded.

    Raises:
        BadJpeg: A full decode would refuse the file, or it is too large.
    """
    head = data[: data.find(_SCAN_START) + _SCAN_HEADER_BYTES]
    header = _known.get(head)
    if header is not None and header.width * header.height <= max_pixels:
        extrema = _decode_known(data, header)
        if extrema is not None:
            return _facts(header, extrema)
    try:
        image, header, header_end = _open_draft(data, max_pixels)
        with image:
            image.load()
            extrema = (image if image.mode == "L" else image.convert("L")).getextrema()
    except _REFUSALS as error:
        raise BadJpeg(f"{type(error).__name__}: {error}") from None
    if header_end <= len(head) and image.mode == "L" and len(_known) < _MAX_KNOWN:
        _known[head] = header
    return _facts(header, extrema)
