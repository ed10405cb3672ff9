"""The draft decode gives the verdict of a full decode, file by file."""

from __future__ import annotations

import io
import random
import warnings

import pytest
from PIL import Image

from damage import damaged_jpegs, sound_jpegs
from photos import make_photo, segment, with_comment
from shardwright import jpeg_scan
from shardwright.jpeg import BadJpeg, JpegFacts, probe_jpegs


def probe_jpeg(data: bytes, **options) -> JpegFacts:
    (found,) = probe_jpegs([data], **options)
    if isinstance(found, BadJpeg):
        raise found
    return found


def full_decode_accepts(data: bytes) -> bool:
    """The reference: every pixel in full size and colour; any exception whatever is a refusal."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return image.format == "JPEG"
    except Exception:  # noqa: BLE001 - the reference decides by success alone
        return False


@pytest.mark.parametrize(
    ("seed", "rounds", "width", "height"), [(1, 45, 96, 72), (2, 6, 512, 384), (3, 20, 33, 17)]
)
def test_same_verdict_as_a_full_decode(seed, rounds, width, height):
    """R21: flips, cuts, runs, lost and stray markers, damaged headers, in nine kinds of JPEG."""
    names, files = zip(*damaged_jpegs(seed, rounds, width, height), strict=True)
    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        full = [full_decode_accepts(data) for data in files]
        starts = range(0, len(files), 64)
        probed = [found for start in starts for found in probe_jpegs(files[start : start + 64])]
    accepted = [isinstance(found, JpegFacts) for found in probed]
    assert [
        name for name, *verdicts in zip(names, accepted, full, strict=True) if len(set(verdicts)) > 1
    ] == []
    fewest = min(sum(full), len(full) - sum(full))
    assert fewest > rounds * 9 * 12 / 4, "the damage is too weak or too strong to tell"


needs_the_scan = pytest.mark.skipif(
    jpeg_scan.library() is None, reason="scripts/shardwright/libjpeg_scan.so is not compiled: run `make env`"
)


def draft_greys(data: bytes) -> tuple[int, int]:
    """The darkest and the lightest block as Pillow's draft decode shows them."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("L", (image.width // 8, image.height // 8))
        return image.getextrema()


@needs_the_scan
@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"quality": 30}]
)
def test_the_compiled_scan_sees_the_greys_of_the_draft_decode(options):
    """Its yes rests on the same data: every size of the last blocks, restarts, all samplings."""
    for number in range(60):
        size = (8 + number * 7 % 97, 8 + number * 5 % 61)
        data = make_photo(number, *size, **options, restart_marker_blocks=number % 4)
        header = jpeg_scan.split_header(data)
        plan = jpeg_scan.make_plan(data, header)
        assert (header.width, header.height) == size
        assert jpeg_scan.scan([data], [header], plan) == [draft_greys(data)], (size, options)


@needs_the_scan
@pytest.mark.parametrize("restart", [0, 3])
def test_files_scanned_together_do_not_touch_each_other(restart):
    """Two hundred sizes and kinds of damage at once, in lanes that end and begin at different times."""
    rng = random.Random(restart)
    sound = [
        make_photo(number, rng.randint(8, 300), rng.randint(8, 300), restart_marker_blocks=restart)
        for number in range(40)
    ]
    headers = [jpeg_scan.split_header(data) for data in sound]
    plan = jpeg_scan.make_plan(sound[0], headers[0])
    files = list(zip(sound, headers, strict=True))
    for _ in range(160):
        data, header = rng.choice(files[:40])
        damaged = bytearray(data)
        damaged[rng.randrange(header.end, len(data))] ^= 1 << rng.randrange(8)
        files.append((bytes(damaged[: rng.choice((len(data), rng.randint(header.end, len(data))))]), header))
    rng.shuffle(files)
    together = jpeg_scan.scan(*zip(*files, strict=True), plan)
    assert together == [jpeg_scan.scan([data], [header], plan)[0] for data, header in files]
    for (data, _), greys in zip(files, together, strict=True):
        if greys:
            assert full_decode_accepts(data) and greys == draft_greys(data)
    assert 60 < sum(greys is not None for greys in together) < 160


@needs_the_scan
def test_the_compiled_scan_leaves_to_pillow_what_it_does_not_know():
    plans = {}
    for name, data in sound_jpegs(96, 72).items():
        header = jpeg_scan.split_header(data)
        plans[name] = header and jpeg_scan.make_plan(data, header)
    assert {name for name, plan in plans.items() if plan is None} == {
        "CMYK",
        "progressive",
        "grey progressive",
    }


@pytest.mark.parametrize(("width", "height"), [(7, 100), (100, 7), (65_501, 8), (4096, 4097)])
def test_sizes_that_are_not_scanned(width, height):
    """Beyond them sums of the scan, or libjpeg's verdict, might be others."""
    photo = make_photo(1, 64, 48)
    assert jpeg_scan.split_header(_with_size(photo, 4096, 4096)).is_scannable
    assert not jpeg_scan.split_header(_with_size(photo, width, height)).is_scannable


@needs_the_scan
def test_the_compiled_scan_says_no_to_every_cut_and_to_data_behind_the_end():
    data = make_photo(3, 96, 72)
    header = jpeg_scan.split_header(data)
    plan = jpeg_scan.make_plan(data, header)
    others = [data[:end] for end in range(header.end, len(data))]
    others += [data + b"\0", data[:-2] + b"\xff\xd0\xff\xd9"]
    found = jpeg_scan.scan([data, *others], [header] * (1 + len(others)), plan)
    assert found[0] and found[1:] == [None] * len(others)


@needs_the_scan
def test_the_second_file_with_a_header_is_scanned(monkeypatch):
    first, second = make_photo(5, 64, 48), make_photo(6, 80, 40)
    probe_jpeg(first)
    monkeypatch.setattr(Image, "open", lambda *args, **options: pytest.fail("Pillow was asked"))
    assert probe_jpeg(second) == JpegFacts(80, 40, "RGB", False)


def frame_of(data: bytes) -> int:
    return data.index(b"\xff\xc0")


def false_frame_in_a_comment() -> bytes:
    photo = make_photo(1, 64, 48)
    frame = photo[frame_of(photo) :][:5] + (64).to_bytes(2, "big") + (48).to_bytes(2, "big")
    return photo[:2] + segment(0xFE, frame) + photo[2:]


def false_header_in_a_comment() -> bytes:
    """The false scan's header ends far behind the true one, in a comment that ends the file."""
    photo = make_photo(1, 64, 48, mode="L")
    start = photo.index(b"\xff\xda")
    end = start + 2 + photo[start + 3]
    false = segment(0xC0, b"\x08\0\x30\0\x40\x01\x01\x11\0") + b"\xff\xda\xff\xf0"
    return photo[:2] + segment(0xFE, false) + photo[2:end] + segment(0xFE, bytes(1000))


def header_alone_of_a_height_that_looks_like_a_marker() -> bytes:
    photo = make_photo(1, 64, 48)
    frame, end = frame_of(photo), jpeg_scan.split_header(photo).end
    return photo[: frame + 5] + b"\xff\xda" + (900).to_bytes(2, "big") + photo[frame + 9 : end]


def wider_than_libjpeg_allows() -> bytes:
    photo = make_photo(1, 65_500, 8, mode="L")
    frame = frame_of(photo)
    return photo[: frame + 7] + (65_504).to_bytes(2, "big") + photo[frame + 9 :]


def sampled_three_to_two() -> bytes:
    """A grey picture of two MCUs, each of 3 + 2 + 2 blocks: libjpeg decodes it in draft mode alone."""
    stream = io.BytesIO()
    Image.new("RGB", (48, 8), (128, 128, 128)).save(stream, "JPEG", subsampling=0)
    data = bytearray(stream.getvalue())
    frame = frame_of(data)
    data[frame + 11], data[frame + 14], data[frame + 17] = 0x31, 0x21, 0x21
    bits = ("001010" * 3 + "0000" * 4) * 2
    codes = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    return bytes(data[: jpeg_scan.split_header(bytes(data)).end]) + codes + b"\xff\xd9"


@pytest.mark.parametrize(
    "make",
    [
        false_frame_in_a_comment,
        false_header_in_a_comment,
        header_alone_of_a_height_that_looks_like_a_marker,
        wider_than_libjpeg_allows,
        sampled_three_to_two,
    ],
)
def test_a_header_that_misleads_gets_the_verdict_of_a_full_decode_each_time(make):
    """Headers are known by their bytes: none may pass for another, at its first file or its second."""
    for kind in ("RGB", "L"):
        probe_jpeg(make_photo(1, 64, 48, mode=kind))
    data = make()
    verdict = full_decode_accepts(data)
    found = [probe_jpegs([data])[0], *probe_jpegs([data] * 3), probe_jpegs([data])[0]]
    assert [isinstance(facts, JpegFacts) for facts in found] == [verdict] * 5
    if verdict:
        facts = probe_jpeg(data)
        assert (facts.width, facts.height) == Image.open(io.BytesIO(data)).size


def test_verdicts_without_the_compiled_scan(monkeypatch):
    monkeypatch.setattr("shardwright.jpeg.library", lambda: None)
    photo = make_photo(1, 64, 48)
    assert probe_jpeg(photo) == probe_jpeg(photo) == JpegFacts(64, 48, "RGB", False)
    assert isinstance(*probe_jpegs([photo[:-40]]), BadJpeg)


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
