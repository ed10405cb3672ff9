"""One rule for each kind of picture, measured on pixels (R18, R19, R20, S01, S02, S03)."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, features

from download_helpers import encoded, pixels, refused, store
from shardwright.download.resizer import Stored

RED, BLUE = (200, 30, 60), (20, 120, 220)


def halves(width: int = 96, height: int = 64) -> Image.Image:
    """Red on the left, blue on the right."""
    picture = Image.new("RGB", (width, height), RED)
    picture.paste(BLUE, (width // 2, 0, width, height))
    return picture


def assert_halves(stored: Stored, left=RED, right=BLUE, tolerance=4) -> None:
    found = pixels(stored)
    quarter = found.shape[1] // 4
    assert np.abs(found[20, quarter] - left).max() <= tolerance, found[20, quarter]
    assert np.abs(found[20, -quarter] - right).max() <= tolerance, found[20, -quarter]


def png16(colour: tuple[int, ...]) -> bytes:
    """A PNG of one colour with 16 bits a channel (grey, RGB or RGBA)."""
    shape = (32, 48) if len(colour) == 1 else (32, 48, len(colour))
    order = [2, 1, 0, 3][: len(colour)] if len(colour) > 1 else [0]
    values = np.array(colour, np.uint16)[order]
    return cv2.imencode(
        ".png", np.broadcast_to(values, shape).copy() if len(colour) > 1 else np.full(shape, values[0])
    )[1].tobytes()


@pytest.mark.parametrize("colour", [(20000,), (65535,), (128,), (40000, 20000, 1000)])
def test_16_bit_pictures_are_scaled_not_clipped_to_white(colour):
    """S01: img2dataset makes every one of these pure white."""
    stored = store(png16(colour))
    expected = [round(value / 257) for value in colour]
    found = pixels(stored)[16, 24]
    assert np.abs(found - (expected if len(colour) > 1 else expected * 3)).max() <= 2
    assert stored.adjustments == ["16_bit_scaled"]


def test_16_bit_alpha_is_scaled_and_matted():
    stored = store(png16((0, 0, 0, 32768)))
    assert np.abs(pixels(stored)[16, 24] - 127).max() <= 1
    assert stored.adjustments == ["16_bit_scaled", "alpha_on_white"]


def test_16_bit_tiff():
    stored = store(encoded(Image.fromarray(np.full((32, 48), 30000, np.uint16)), "TIFF"))
    assert np.abs(pixels(stored)[16, 24] - 117).max() <= 1


def test_floating_point_is_refused_by_name():
    data = encoded(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF")
    assert refused(data) == "unsupported: float32 pixels"


# EXIF orientation


def marked(orientation: int, suffix: str = "JPEG") -> bytes:
    """What a camera stores so that it is *shown* as red top left, on white, wider than high."""
    shown = Image.new("RGB", (120, 80), "white")
    ImageDraw.Draw(shown).rectangle((0, 0, 39, 19), fill=RED)
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    kept = shown.transpose(undo) if undo is not None else shown
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(kept, suffix, exif=exif.tobytes(), **({"quality": 95} if suffix == "JPEG" else {}))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_and_the_boxes_turn_along(orientation):
    """R20, S02. Boxes are in the stored frame, as DataComp's: its detector saw unturned pixels."""
    data = marked(orientation)
    kept = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    ys, xs = np.nonzero(kept[:, :, 1] < 128)
    height, width = kept.shape[:2]
    box = [xs.min() / width, ys.min() / height, (xs.max() + 1) / width, (ys.max() + 1) / height]
    stored = store(data, [box])
    assert stored.size == stored.original_size == (120, 80)
    assert np.allclose(stored.boxes, [[0, 0, 1 / 3, 1 / 4]], atol=0.02)
    seen = pixels(store(data))
    assert np.abs(seen[10, 20] - RED).max() <= 6 and seen[60, 20].min() > 245 and seen[10, 100].min() > 245
    expected = [f"exif_orientation_{orientation}"] if orientation > 1 else []
    assert stored.adjustments == [*expected, "faces_hidden"]


def test_boxes_in_the_displayed_frame_stay():
    assert store(marked(6), [[0.1, 0.2, 0.3, 0.4]], face_boxes_frame="displayed").boxes == [
        [0.1, 0.2, 0.3, 0.4]
    ]


@pytest.mark.parametrize("suffix", ["PNG", "WEBP"])
def test_exif_orientation_of_other_formats(suffix):
    assert store(marked(6, suffix)).size == (120, 80)


def test_an_orientation_that_does_not_exist_is_none():
    exif = Image.Exif()
    exif[0x0112] = 77
    assert store(encoded(halves(), "JPEG", exif=exif.tobytes())).adjustments == []


# Colour models


def test_cmyk():
    stored = store(encoded(halves().convert("CMYK"), "JPEG", quality=95))
    assert_halves(stored)
    assert stored.adjustments == ["cmyk_to_rgb"]


def test_ycck():
    """Adobe's CMYK with C, M and Y stored as YCbCr: Pillow writes CMYK (inverted), the marker is patched."""
    c, m, y, k = halves().convert("CMYK").split()
    ycc = Image.merge("RGB", [c, m, y]).convert("YCbCr").split()
    inverted = [plane.point(lambda value: 255 - value) for plane in ycc]
    data = bytearray(encoded(Image.merge("CMYK", [*inverted, k]), "JPEG", quality=95))
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    data[transform] = 2
    assert_halves(store(bytes(data)), tolerance=6)


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_stays_grey(mode):
    stored = store(encoded(halves().convert(mode), "PNG"))
    assert Image.open(io.BytesIO(stored.jpeg)).mode == "L"


def test_palette():
    assert_halves(store(encoded(halves().quantize(4), "PNG")))


@pytest.mark.parametrize("suffix", ["PNG", "GIF"])
def test_palette_with_transparency_is_matted_on_white(suffix):
    picture = halves().quantize(4)
    data = encoded(picture, suffix, transparency=picture.getpixel((0, 0)))
    stored = store(data)
    assert_halves(stored, left=(255, 255, 255))
    assert stored.adjustments == ["alpha_on_white"]


@pytest.mark.parametrize("suffix", ["PNG", "WEBP"])
def test_alpha_is_matted_on_white(suffix):
    picture = halves()
    picture.putalpha(128)
    stored = store(encoded(picture, suffix, **({"lossless": True} if suffix == "WEBP" else {})))
    assert_halves(stored, left=(227, 142, 157), right=(137, 187, 237))


def test_grey_with_alpha_is_matted_on_white():
    data = encoded(Image.merge("LA", (Image.new("L", (96, 64), 0), Image.new("L", (96, 64), 64))), "PNG")
    assert np.abs(pixels(store(data))[20, 20] - 191).max() <= 1


def test_the_matte_is_img2datasets_to_the_last_value():
    rng = np.random.default_rng(3)
    from shardwright.download.pictures import matte_on_white

    bgra = rng.integers(0, 256, (400, 400, 4), dtype=np.uint8)
    alpha = bgra[:, :, 3:].astype(float)
    expected = np.rint((alpha / 255 * bgra[..., :3] + 255 - alpha).clip(0, 255)).astype(np.uint8)
    assert np.array_equal(matte_on_white(bgra), expected)


# Formats


@pytest.mark.parametrize("suffix", ["GIF", "WEBP", "PNG"])
def test_of_animated_files_the_first_frame_is_kept(suffix):
    options = {"lossless": True} if suffix == "WEBP" else {}
    frames = [halves(), Image.new("RGB", (96, 64), (0, 255, 0))]
    data = encoded(frames[0], suffix, save_all=True, append_images=frames[1:], duration=100, **options)
    stored = store(data)
    assert_halves(stored)
    assert "first_frame" in stored.adjustments


def test_progressive_jpeg_bmp_tiff_and_jpeg2000():
    assert_halves(store(encoded(halves(), "JPEG", quality=95, progressive=True)))
    for suffix in ("BMP", "TIFF", "JPEG2000"):
        assert_halves(store(encoded(halves(), suffix)))


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF encoder to make the fixture")
def test_avif():
    assert_halves(store(encoded(halves(), "AVIF", quality=95)), tolerance=8)
