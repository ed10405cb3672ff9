"""The example's data: committed rows that the generator gives again, pictures true to their captions."""

from __future__ import annotations

import collections
import io
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

import make_example
from helpers import CHECKOUT
from shardwright import example_rows
from shardwright.example_pictures import bomb, draw_scene, picture
from shardwright.example_rows import START
from shardwright.example_scenes import COLOURS, background, caption, random_scene, things
from shardwright.example_server import picture_at
from shardwright.files import sha256_file
from shardwright.layout import read_pins
from shardwright.selection import in_validation

METADATA = CHECKOUT / "config/example/metadata"


@pytest.fixture(scope="module")
def rows():
    return [row for path in sorted(METADATA.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize(
    ("pins", "folder", "options"),
    [("example", METADATA, []), ("solid", METADATA.parent / "solid", ["--scenes", "solid", "--rows", "96"])],
)
def test_the_committed_parquets_are_what_the_generator_writes(tmp_path, pins, folder, options):
    """Deterministic from its seed. File digests are left out: encoders differ between machines."""
    make_example.main(["--folder", str(tmp_path), "--pins", str(tmp_path / "pins.tsv"), *options])
    for pin in read_pins(CHECKOUT / f"config/pins/{pins}.tsv"):
        committed = folder / f"{pin.name}.parquet"
        assert (pin.bytes, pin.sha256) == (committed.stat().st_size, sha256_file(committed))
        again = pq.read_table(tmp_path / committed.name).drop_columns("sha256")
        assert again.num_rows == pin.rows
        # NaN boxes never compare equal; their text does
        assert str(again.to_pylist()) == str(pq.read_table(committed).drop_columns("sha256").to_pylist())


def test_the_solid_set_validates_on_colours_it_does_not_train_on():
    rows = pq.read_table(METADATA.parent / "solid/solid-000.parquet").to_pylist()
    split = in_validation([row["uid"] for row in rows], 0.5)
    colours = {True: set(), False: set()}
    for row, is_validation in zip(rows, split, strict=True):
        colours[bool(is_validation)].add(row["text"])
        shade = Image.open(io.BytesIO(picture_at(row["url"].removeprefix(START)))).getpixel((0, 0))
        name = row["text"].removeprefix("The image is ").rstrip(".")
        assert np.abs(np.subtract(shade, example_rows.SOLID_COLOURS[name])).max() <= 12
    assert [len(colours[key]) for key in (False, True)] == [4, 2]
    assert not colours[True] & colours[False]


def test_the_rows_hold_what_the_example_promises(rows):
    """A third of the URLs fail at first, enough samples remain, and the metadata has its own faults."""
    behaviours = collections.Counter(row["url"].split("/")[3] for row in rows)
    assert set(example_rows.BEHAVIOURS) - {"gone", "refused"} <= set(behaviours)
    at_first = sum(
        count
        for name, count in example_rows.BEHAVIOURS.items()
        if name not in ("redirect", "wrong-type", "chunked")
    )
    assert 0.28 < at_first / len(rows) < 0.4
    captions = [row["text"] for row in rows]
    assert sum(not (text or "").strip() for text in captions) == 4
    assert sum("<|" in (text or "") for text in captions) == 4
    assert len({row["uid"] for row in rows}) == len(rows) - example_rows.NUM_DOUBLED_UIDS
    assert any(row["face_bboxes"] is None for row in rows)


def test_captions_of_the_parquets_describe_their_urls(rows):
    for row in rows:
        if row["text"] and row["text"].strip():
            scene = row["url"].split("/")[4]
            assert row["text"].split("<|")[0].rstrip() == caption(scene)


@pytest.mark.parametrize("seed", range(30))
def test_a_picture_shows_what_its_caption_says(seed):
    """Colour by colour: the ground in the corners, each thing at its place, the larger one larger."""
    scene = random_scene(random.Random(seed))
    width, height = 320, 240
    image = draw_scene(scene, width, height, seed)
    assert image.getpixel((1, 1)) == background(scene)
    placed = things(scene, width, height, seed)
    for thing in placed:
        left, top, right, bottom = thing.box
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
        assert image.getpixel((int(left + right) // 2, int(top + bottom) // 2)) == COLOURS[thing.colour]
        assert f"{thing.colour} {thing.kind}" in caption(scene)
    if len(placed) == 2:
        (x0, y0), (x1, y1) = (((t.box[0] + t.box[2]) / 2, (t.box[1] + t.box[3]) / 2) for t in placed)
        right_way = {"above": y0 < y1, "below": y0 > y1, "left of": x0 < x1, "right of": x0 > x1}
        assert all(holds for words, holds in right_way.items() if words in caption(scene))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_upright_again_under_its_exif_orientation(orientation):
    scene = "large-black-square-leftof-small-white-triangle-on-blue"
    stored = Image.open(io.BytesIO(picture(scene, 96, 64, f"exif{orientation}", 3, "jpg")))
    assert stored.size == ((64, 96) if orientation >= 5 else (96, 64))
    drawn = np.asarray(draw_scene(scene, 96, 64, 3), dtype=int)
    upright = ImageOps.exif_transpose(stored)
    turned = [upright, *(upright.transpose(turn) for turn in Image.Transpose)]
    misses = [
        np.abs(np.asarray(image, dtype=int) - drawn).mean() for image in turned if image.size == (96, 64)
    ]
    assert misses[0] < 6 and misses[0] == min(misses)


def test_face_boxes_lie_on_the_drawn_faces_as_the_file_is_stored(rows):
    """Also where the file is stored turned; the row's sizes are those of the stored file."""
    num_checked = 0
    for row in rows:
        boxes = row["face_bboxes"] or []
        good = [box for box in boxes if 0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1]
        if not good or "/ok/" not in row["url"]:
            continue
        image = Image.open(io.BytesIO(picture_at(row["url"].removeprefix(START))))
        assert image.size == (row["original_width"], row["original_height"])
        for x0, y0, x1, y1 in good:
            centre = image.convert("RGB").getpixel(
                (int((x0 + x1) / 2 * image.width), int((y0 + y1) / 2 * image.height))
            )
            assert np.abs(np.subtract(centre, COLOURS["yellow"])).max() < 60
        num_checked += 1
    assert num_checked >= 15


@pytest.mark.parametrize(
    ("form", "suffix", "mode"),
    [
        ("rgb", "jpg", "RGB"),
        ("rgb", "webp", "RGB"),
        ("rgb", "gif", "P"),
        ("grey", "png", "L"),
        ("cmyk", "jpg", "CMYK"),
        ("progressive", "jpg", "RGB"),
        ("alpha", "png", "RGBA"),
        ("palette", "png", "P"),
        ("grey16", "png", "I;16"),
    ],
)
def test_each_form_is_stored_as_named(form, suffix, mode):
    image = Image.open(io.BytesIO(picture("large-black-square-on-white", 80, 60, form, 1, suffix)))
    image.load()
    assert (image.mode, image.size) == (mode, (80, 60))
    if form == "grey16":
        assert image.getpixel((1, 1)) == 250 * 257


def test_sixteen_bit_colour_has_sixteen_bits():
    data = picture("large-red-circle-on-white", 80, 60, "rgb16", 1, "png")
    assert data[24] == 16 and data[25] == 2  # bit depth and colour type of IHDR
    image = Image.open(io.BytesIO(data)).convert("RGB")
    assert image.getpixel((40, 30)) == COLOURS["red"]


def test_the_bomb_is_small_to_send_and_large_to_open(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2**26)  # other programs of the suite lift the limit
    assert len(bomb()) < 400_000
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(bomb()))
