"""From downloaded bytes to the JPEG that is stored: one rule for each kind of picture.

| kind | rule |
|---|---|
| 8-bit grey or colour | decode, INTER_AREA resize and encode as img2dataset does: the same bytes |
| 16 bit | scaled to 8 (65535 becomes 255) |
| alpha, palette with transparency | matted on white |
| CMYK, YCCK | Pillow's conversion to RGB |
| EXIF orientation 2 to 8 (JPEG, PNG, WebP) | applied before the resize; face boxes turn along |
| animated | the first frame |
| more than max_pixels | refused from the header, nothing is decoded |
| damaged or cut short | refused |
| floating point | refused |

Runs under Python 3.10, OpenCV 4.6 and Pillow 9.3 too; those do not decode GIF, animated WebP, AVIF.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from shardwright.download.fetch_error import FetchError

_ORIENTATION_TAG = 0x0112
_ORIENTED_KINDS = frozenset({"JPEG", "MPO", "PNG", "WEBP"})
_KINDS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
# Older OpenCV fills the missing part of a JPEG with grey and reports success.
_OPENCV_IS_LAX = tuple(int(part) for part in cv2.__version__.split(".")[:2]) < (4, 10)
_MAX_SIDE = 65500  # of a JPEG
_TURNS = {
    2: lambda pixels: cv2.flip(pixels, 1),
    3: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_180),
    4: lambda pixels: cv2.flip(pixels, 0),
    5: lambda pixels: cv2.transpose(pixels),
    6: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE),
    7: lambda pixels: cv2.rotate(cv2.flip(pixels, 1), cv2.ROTATE_90_CLOCKWISE),
    8: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
}

# max_pixels is checked on the header, before any decode.
Image.MAX_IMAGE_PIXELS = None
Image.init()
_OPENABLE = tuple(kind for kind in _KINDS if kind in Image.OPEN)


@dataclass(frozen=True)
class Header:
    """What a picture says of itself before it is decoded."""

    kind: str
    mode: str
    width: int
    height: int
    orientation: int
    animated: bool


def _what_else(data: bytes) -> str:
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not data:
        return "an empty body"
    if b"<svg" in head:
        return "an SVG"
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<!--", b"<script")):
        return "an HTML page"
    return "no picture header"


def read_header(data: bytes) -> Header:
    """Read kind, size, mode and EXIF orientation; decodes nothing.

    Raises:
        FetchError: not_an_image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_OPENABLE) as picture:
            kind = picture.format or ""
            orientation = 1
            # Without an EXIF chunk, Pillow's getexif() of a PNG would decode the whole picture.
            if kind in _ORIENTED_KINDS and "exif" in picture.info:
                orientation = picture.getexif().get(_ORIENTATION_TAG, 1)
            animated = kind in ("GIF", "WEBP", "PNG", "AVIF") and bool(getattr(picture, "is_animated", False))
            mode, (width, height) = picture.mode, picture.size
    except UnidentifiedImageError:
        raise FetchError("not_an_image", _what_else(data)) from None
    except (OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, struct.error) as error:
        raise FetchError("not_an_image", f"a damaged header ({type(error).__name__})") from None
    if orientation not in _TURNS:
        orientation = 1
    return Header(kind, mode, width, height, orientation, animated)


def _whole_jpeg(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as picture:
            picture.draft("L", (picture.width // 8, picture.height // 8))
            picture.load()
        return True
    except (OSError, SyntaxError, ValueError):
        return False


def _decode_cmyk(data: bytes) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data), formats=_OPENABLE) as picture:
            return np.ascontiguousarray(np.asarray(picture.convert("RGB"))[:, :, ::-1])
    except (OSError, SyntaxError, ValueError) as error:
        raise FetchError("truncated", f"not decodable ({type(error).__name__})") from None


def _reduction(header: Header, image_size_px: int) -> int:
    """Return OpenCV's flag to decode a JPEG at 1/2, 1/4 or 1/8, still at least twice as large as needed."""
    flags = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
    for divisor, flag in flags.items():
        if max(header.width, header.height) >= 2 * image_size_px * divisor:
            return flag | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.IMREAD_UNCHANGED


def decode(data: bytes, header: Header, reduce_to_px: int = 0) -> np.ndarray:
    """Decode the first frame as it is stored: 8 or 16 bit, one, three or four channels (BGR).

    Args:
        data: The file.
        header: Its header.
        reduce_to_px: If not 0, large colour JPEGs are decoded at a fraction of their size, at
            least twice as large as this.

    Raises:
        FetchError: truncated, unsupported or not_an_image.
    """
    if header.mode in ("CMYK", "YCCK"):
        return _decode_cmyk(data)
    flags = cv2.IMREAD_UNCHANGED
    if reduce_to_px and header.kind in ("JPEG", "MPO") and header.mode == "RGB":
        flags = _reduction(header, reduce_to_px)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        if _OPENCV_IS_LAX and (header.kind in ("GIF", "AVIF") or header.animated):
            raise FetchError("not_an_image", f"{header.kind}, which this OpenCV does not decode")
        raise FetchError("truncated", f"a damaged {header.kind}")
    if _OPENCV_IS_LAX and header.kind in ("JPEG", "MPO") and not _whole_jpeg(data):
        raise FetchError("truncated", f"a damaged {header.kind}")
    if pixels.dtype not in (np.uint8, np.uint16):
        raise FetchError("unsupported", f"{pixels.dtype} pixels")
    return pixels


def to_8_bit(pixels: np.ndarray) -> np.ndarray:
    """Scale 16-bit pixels to 8 bits, to the nearest value."""
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)


def matte_on_white(pixels: np.ndarray) -> np.ndarray:
    """Return BGR for BGRA: `alpha / 255 * colour + 255 - alpha`, rounded, as img2dataset has it."""
    alpha = pixels[:, :, 3:].astype(np.uint16)
    # At most 255 * 255 + 127, which 16 bits hold.
    return ((alpha * pixels[:, :, :3] + (255 - alpha) * np.uint16(255) + np.uint16(127)) // 255).astype(
        np.uint8
    )


def orient(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return the picture as it is meant to be seen (EXIF orientation 1 to 8)."""
    return _TURNS[orientation](pixels) if orientation != 1 else pixels


def target_size(width: int, height: int, size: int, mode: str, only_if_bigger: bool) -> tuple[int, int]:
    """Return the width and height to store; the same numbers as img2dataset's."""
    if mode == "no":
        return width, height
    side = max(width, height) if mode == "keep_ratio_largest" else min(width, height)
    if only_if_bigger and side <= size:
        return width, height
    scale = size / side
    return max(1, round(width * scale)), max(1, round(height * scale))


def resize(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the picture at the given size: area averages downwards, Lanczos upwards."""
    old_height, old_width = pixels.shape[:2]
    if (old_width, old_height) == (width, height):
        return pixels
    smaller = width <= old_width and height <= old_height
    return cv2.resize(
        pixels, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LANCZOS4
    )


def encode_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """Encode as JPEG.

    Raises:
        FetchError: unsupported, for a side that JPEG cannot hold.
    """
    if max(pixels.shape[:2]) > _MAX_SIDE:
        raise FetchError("unsupported", f"a side of more than {_MAX_SIDE} pixels")
    return cv2.imencode(".jpg", pixels, [int(cv2.IMWRITE_JPEG_QUALITY), quality])[1].tobytes()
