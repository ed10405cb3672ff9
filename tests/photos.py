"""Photo-like JPEGs from a seed."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import Image


def make_photo(seed: int, width: int = 512, height: int = 384, mode: str = "RGB", **save: Any) -> bytes:
    """Return a photo-like JPEG: smooth shapes, texture at every scale, some sensor noise.

    At 512 x 384 and quality 95 it has about 38 KB, the mean of the DataComp reference run.
    `save` goes to Pillow (`progressive=True`, `quality=...`, `subsampling=...`).
    """
    rng = np.random.default_rng(seed)
    planes = []
    base = None
    for _ in mode:
        plane = Image.new("F", (4, 3), 128)
        for scale, amplitude in ((4, 55), (8, 30), (16, 16), (32, 8), (64, 4), (128, 2)):
            size = (scale, max(2, round(scale * height / width)))
            noise = rng.normal(0, amplitude, size[::-1]).astype(np.float32)
            plane = Image.fromarray(np.asarray(plane.resize(size, Image.Resampling.BILINEAR)) + noise)
        plane = np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR))
        base = plane + rng.normal(0, 1.8, plane.shape).astype(np.float32) if base is None else base
        planes.append(0.75 * base + 0.25 * plane)
    pixels = np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if mode == "L" else pixels)
    stream = io.BytesIO()
    image.save(stream, "JPEG", **{"quality": 95, **save})
    return stream.getvalue()


def make_photos(count: int, seed: int = 0, **options: Any) -> list[bytes]:
    """Return `count` distinct photo-like JPEGs; see `make_photo`."""
    return [make_photo(seed * 1_000_003 + number, **options) for number in range(count)]


def segment(marker: int, payload: bytes) -> bytes:
    """Return a JPEG's marker segment."""
    return bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload


def with_comment(jpeg: bytes, text: str) -> bytes:
    """Return the same picture with a comment segment before its end: other bytes, no new encoding.

    The header stays as it is, as in the files that one encoder writes.
    """
    return jpeg[:-2] + segment(0xFE, text.encode()) + jpeg[-2:]
