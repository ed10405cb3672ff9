"""Draw the example's pictures and encode them in the many forms that the web has.

`picture(scene, width, height, form, seed, suffix)` returns the bytes of one file. The forms:
rgb, grey, cmyk, progressive (JPEG); exif1 … exif8 (JPEG stored turned, with the EXIF orientation
that turns it back); alpha, palette, grey16, rgb16, bomb (PNG). The same arguments give the same
bytes wherever the same Pillow runs.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib

from PIL import Image, ImageDraw

from shardwright.example_scenes import COLOURS, Thing, background, things

BOMB_SIDE_PX = 20_000
_STORED_TURNED = {  # EXIF orientation -> how an upright picture is stored under it
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF"}
_ORIENTATION_TAG = 0x0112


def _draw_thing(draw: ImageDraw.ImageDraw, thing: Thing) -> None:
    left, top, right, bottom = thing.box
    colour = COLOURS[thing.colour]
    if thing.kind == "square":
        draw.rectangle(thing.box, fill=colour)
    elif thing.kind == "triangle":
        draw.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)
    else:
        draw.ellipse(thing.box, fill=colour)
    if thing.kind == "face":
        _draw_smile(draw, thing.box)


def _draw_smile(draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float]) -> None:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    ink = COLOURS["black"]
    for x in (0.34, 0.66):
        centre_x, centre_y = left + x * width, top + 0.38 * height
        draw.ellipse(
            (
                centre_x - 0.06 * width,
                centre_y - 0.09 * height,
                centre_x + 0.06 * width,
                centre_y + 0.09 * height,
            ),
            fill=ink,
        )
    mouth = (left + 0.25 * width, top + 0.35 * height, right - 0.25 * width, bottom - 0.2 * height)
    draw.arc(mouth, 20, 160, fill=ink, width=max(1, round(0.05 * width)))


def draw_scene(name: str, width: int, height: int, seed: int) -> Image.Image:
    """Draw the scene upright, in RGB."""
    image = Image.new("RGB", (width, height), background(name))
    draw = ImageDraw.Draw(image)
    for thing in things(name, width, height, seed):
        _draw_thing(draw, thing)
    return image


def _on_nothing(name: str, width: int, height: int, seed: int) -> Image.Image:
    """The scene with a transparent ground: right for scenes on white, which a decoder mats on white."""
    image = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    draw = ImageDraw.Draw(image)
    for thing in things(name, width, height, seed):
        _draw_thing(draw, thing)
    return image


def _png(width: int, height: int, depth: int, colour_type: int, packed_rows: bytes) -> bytes:
    """Assemble a PNG from compressed rows: Pillow writes neither 16-bit colour nor a cheap giant."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed_rows) + chunk(b"IEND", b"")


def _png16(image: Image.Image) -> bytes:
    """A 16-bit PNG of an 8-bit L or RGB picture (each value times 257, so 255 becomes 65535)."""
    channels = len(image.getbands())
    row_bytes = image.width * channels
    data = image.tobytes()
    rows = b"".join(
        b"\0" + bytes(value for byte in data[start : start + row_bytes] for value in (byte, byte))
        for start in range(0, len(data), row_bytes)
    )
    return _png(image.width, image.height, 16, 0 if channels == 1 else 2, zlib.compress(rows))


@functools.cache
def bomb(side_px: int = BOMB_SIDE_PX) -> bytes:
    """A small black 1-bit PNG of `side_px` squared pixels: 400 megapixels in about 200 kB."""
    packer = zlib.compressobj(1)
    row = bytes(1 + side_px // 8)
    packed = b"".join(packer.compress(row) for _ in range(side_px)) + packer.flush()
    return _png(side_px, side_px, 1, 0, packed)


def _saved(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _jpeg_turned(image: Image.Image, orientation: int) -> bytes:
    turn = _STORED_TURNED[orientation]
    exif = Image.Exif()
    exif[_ORIENTATION_TAG] = orientation
    return _saved(image if turn is None else image.transpose(turn), "JPEG", quality=92, exif=exif)


def picture(scene: str, width: int, height: int, form: str, seed: int, suffix: str) -> bytes:
    """Return the bytes of one picture file.

    Args:
        scene: A scene's name (see `example_scenes`).
        width: Pixels of the upright picture; a turned form (exif5 … exif8) stores them swapped.
        height: Likewise.
        form: How the pixels are kept (see the module's docstring).
        seed: Moves the things a little.
        suffix: jpg, png, webp or gif.

    Raises:
        ValueError: An unknown scene, form or suffix.
    """
    if form == "bomb":
        return bomb()
    if form in ("alpha", "palette"):
        clear = _on_nothing(scene, width, height, seed)
        return _saved(clear.quantize(16) if form == "palette" else clear, "PNG")
    image = draw_scene(scene, width, height, seed)
    if form == "grey16" or form == "rgb16":
        return _png16(image.convert("L") if form == "grey16" else image)
    if form.startswith("exif"):
        return _jpeg_turned(image, int(form.removeprefix("exif")))
    if form == "progressive":
        return _saved(image, "JPEG", quality=92, progressive=True)
    modes = {"rgb": "RGB", "grey": "L", "cmyk": "CMYK"}
    if form not in modes or suffix not in _FORMATS:
        raise ValueError(f"no such form or suffix: {form!r}, {suffix!r}")
    return _saved(image.convert(modes[form]), _FORMATS[suffix], quality=92)
