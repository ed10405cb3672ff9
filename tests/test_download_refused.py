"""Pictures that are refused (from the header where that can be), and the sizes stored (R18, S03)."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from download_helpers import encoded, photo, pixels, refused, store
from helpers import child_env

RED = (200, 30, 60)


def png_of(width: int, height: int) -> bytes:
    """A valid black 1-bit PNG of any size, made some rows at a time (decoders make 8 bits of each)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    rows = bytes((width + 7) // 8 + 1) * 100
    packed = b"".join(packer.compress(rows) for _ in range(height // 100)) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", packed)
        + chunk(b"IEND", b"")
    )


BOMB_PROGRAM = """
import io, re, sys
from download_helpers import settings
from shardwright.download.resizer import PictureResizer
data = open(sys.argv[1], "rb").read()
print(PictureResizer(settings()[0])(io.BytesIO(data), [])[5])
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) // 1024)
"""


def test_a_bomb_of_900_megapixels_is_refused_from_its_header(tmp_path):
    """R18, S03: img2dataset decodes it first (2.6 GB)."""
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_of(30_000, 30_000))
    assert bomb.stat().st_size < 1_000_000
    done = subprocess.run(
        [sys.executable, "-c", BOMB_PROGRAM, str(bomb)],
        capture_output=True,
        text=True,
        check=True,
        env=child_env(PYTHONPATH=":".join(sys.path)),
    )
    message, peak_mb = done.stdout.split("\n")[:2]
    assert message == "too_many_pixels: more than 150000000"
    assert int(peak_mb) < 300


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize(
    ("suffix", "options"),
    [("JPEG", {"quality": 95}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {})],
)
def test_files_cut_short_are_refused(suffix, options, keep):
    data = photo(5, 200, 150, suffix, **options)
    assert refused(data[: int(len(data) * keep)]).partition(":")[0] in ("truncated", "not_an_image")


def test_a_jpeg_cut_behind_its_header_is_truncated():
    data = photo(5, 200, 150, quality=95)
    assert refused(data[: len(data) // 2]) == "truncated: a damaged JPEG"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "an empty body"),
        (b"<!DOCTYPE html><html><body>Moved.</body></html>", "an HTML page"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG"),
        (b"GIF89a", "a damaged header (OSError)"),
        (gzip.compress(b"x" * 100, mtime=0), "no picture header"),
        (bytes(range(256)) * 4, "no picture header"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture header"),
    ],
)
def test_what_is_no_picture_is_named(data, detail):
    assert refused(data).partition(": ")[0] == "not_an_image"
    if detail != "a damaged header (OSError)":
        assert refused(data) == f"not_an_image: {detail}"


# Sizes


@pytest.mark.parametrize(
    ("size", "stored"),
    [
        ((1, 1), (1, 1)), ((5000, 1), (512, 1)), ((1, 5000), (1, 512)), ((5000, 2), (512, 1)),
        ((512, 512), (512, 512)), ((513, 10), (512, 10)), ((1024, 768), (512, 384)), ((33, 1000), (17, 512)),
    ],
)  # fmt: skip
def test_sizes_one_pixel_banners_too(size, stored):
    found = store(encoded(Image.new("RGB", size, RED), "PNG"))
    assert found.size == stored and found.original_size == size
    assert Image.open(io.BytesIO(found.jpeg)).size == stored


def test_a_side_longer_than_jpeg_holds_is_refused_by_name():
    data = encoded(Image.new("L", (70_000, 2)), "PNG")
    assert refused(data, resize_mode="no").startswith("unsupported: a side of more than 65500")


def test_small_pictures_grow_only_when_asked():
    data = photo(1, 40, 30)
    assert store(data).size == (40, 30)
    assert store(data, resize_only_if_bigger=False).size == (512, 384)
    assert store(photo(1, 800, 600), resize_mode="keep_ratio", image_size_px=300).size == (400, 300)


def test_reduced_decoding_differs_little_and_is_an_option():
    """decode: reduced. Error on a detailed 2,400-pixel picture: below 2 grey levels on average."""
    data = photo(11, 2400, 1800, quality=90)
    exact, reduced = store(data), store(data, decode="reduced")
    assert exact.size == reduced.size == (512, 384) and exact.original_size == reduced.original_size
    error = np.abs(pixels(exact) - pixels(reduced))
    assert exact.jpeg != reduced.jpeg and error.mean() < 2 and np.percentile(error, 99) < 8
