"""The draft decode gives the verdict of a full decode, file by file."""

from __future__ import annotations

import io
import warnings

import pytest
from PIL import Image

from damage import damaged_jpegs, sound_jpegs
from photos import make_photo, with_comment
from shardwright.jpeg import BadJpeg, JpegFacts, probe_jpeg


def full_decode_accepts(data: bytes) -> bool:
    """The reference: every pixel in full size and colour; any exception whatever is a refusal."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return image.format == "JPEG"
    except Exception:  # noqa: BLE001 - the reference decides by success alone
        return False


def probe_accepts(data: bytes) -> bool:
    try:
        probe_jpeg(data)
    except BadJpeg:
        return False
    return True


@pytest.mark.parametrize(
    ("seed", "rounds", "width", "height"), [(1, 45, 96, 72), (2, 6, 512, 384), (3, 20, 33, 17)]
)
def test_same_verdict_as_a_full_decode(seed, rounds, width, height):
    """R21: flips, cuts, runs, lost and stray markers, damaged headers, in nine kinds of JPEG."""
    accepted = refused = 0
    differences = []
    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        for what, data in damaged_jpegs(seed, rounds, width, height):
            full = full_decode_accepts(data)
            accepted, refused = accepted + full, refused + (not full)
            if probe_accepts(data) != full:
                differences.append((what, full))
    assert not differences
    assert min(accepted, refused) > rounds * 9 * 12 / 4, "the damage is too weak or too strong to tell"


def test_facts_of_sound_jpegs():
    for name, data in sound_jpegs(96, 72).items():
        facts = probe_jpeg(data)
        assert (facts.width, facts.height) == Image.open(io.BytesIO(data)).size, name
        assert facts.mode == ("L" if "grey" in name else "CMYK" if name == "CMYK" else "RGB"), name
        assert not facts.near_constant, name


def test_a_comment_changes_nothing_but_the_bytes():
    photo = make_photo(1, 64, 48)
    assert probe_jpeg(with_comment(photo, "uid")) == probe_jpeg(photo) == JpegFacts(64, 48, "RGB", False)


@pytest.mark.parametrize("level", [0, 255])
def test_near_constant_images_are_seen(level):
    """S01: a 16-bit PNG that was clipped to white on its way."""
    stream = io.BytesIO()
    Image.new("RGB", (512, 384), (level, level, level)).save(stream, "JPEG", quality=95)
    assert probe_jpeg(stream.getvalue()).near_constant


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP"])
def test_other_formats_are_not_jpegs(kind):
    stream = io.BytesIO()
    Image.new("RGB", (20, 10)).save(stream, kind)
    with pytest.raises(BadJpeg, match="UnidentifiedImageError"):
        probe_jpeg(stream.getvalue())


def _with_size(jpeg: bytes, width: int, height: int) -> bytes:
    start = jpeg.index(b"\xff\xc0")
    return jpeg[: start + 5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + jpeg[start + 9 :]


def test_bombs_are_refused_before_they_are_decoded(monkeypatch):
    """R18: a few kilobytes that claim gigapixels; Pillow's own bomb error derives from Exception alone."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2**26)  # other programs of the suite lift the limit
    photo = make_photo(1, 64, 48)
    with pytest.raises(BadJpeg, match="DecompressionBombError"):
        probe_jpeg(_with_size(photo, 65_000, 65_000))
    with pytest.raises(BadJpeg, match="8000 x 9000 pixels, more than"):
        probe_jpeg(_with_size(photo, 8_000, 9_000))
    with pytest.raises(BadJpeg, match="64 x 48 pixels, more than 3000"):
        probe_jpeg(photo, max_pixels=3000)
