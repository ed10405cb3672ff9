"""The header walk of raw tars: it agrees with tarfile on sound tars, and is silent about nothing."""

from __future__ import annotations

import io
import os
import random
import tarfile
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raw_shards import tar_pieces
from shardwright import rawtar, tar_walk
from shardwright.rawtar import BadTar, Member, walk_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = [(f"{key:012d}.{suffix}", bytes([key]) * size) for key in range(4) for suffix, size in
           (("jpg", 700), ("json", 512), ("txt", 0))]  # fmt: skip
needs_the_walk = pytest.mark.skipif(
    tar_walk.library() is None, reason="scripts/shardwright/libtar_walk.so is not compiled: run `make env`"
)


def walk(data: bytes) -> list[Member]:
    """Walk a tar with the compiled walk of usual members and without: members or fault are the same."""
    descriptor = os.memfd_create("tar")
    found: list[list[Member] | BadTar] = []
    try:
        os.write(descriptor, data)
        for find_usual in (rawtar.find_usual, lambda *_: []):
            with mock.patch.object(rawtar, "find_usual", find_usual):
                try:
                    found.append(list(walk_members(descriptor)))
                except BadTar as fault:
                    found.append(fault)
    finally:
        os.close(descriptor)
    compiled, plain = found
    if isinstance(plain, BadTar):
        assert str(compiled) == str(plain)
        raise plain
    assert compiled == plain
    return plain


def tarfile_members(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [Member(info.name, info.offset_data, info.size) for info in tar]


def make_tar(names: list[str], sizes: list[int], tar_format: int, mtime: float = 0, headers=None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format, pax_headers=headers) as tar:
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = size, mtime + number
            tar.addfile(info, io.BytesIO(os.urandom(size)))
    return stream.getvalue()


def state_checksum(header: bytearray) -> None:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)


NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..")
)
PATH = st.lists(NAME, min_size=1, max_size=6).map("/".join)


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(PATH, min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 2000), min_size=8, max_size=8),
    tar_format=st.sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    mtime=st.one_of(st.integers(0, 2**33), st.floats(0, 2**33)),
    headers=st.dictionaries(st.sampled_from(("comment", "charset", "VENDOR.note")), NAME, max_size=2),
)
def test_walk_agrees_with_tarfile_on_any_name(names, sizes, tar_format, mtime, headers):
    """Names of any length and script, in GNU and pax form, with time stamps and global headers."""
    data = make_tar(names, sizes[: len(names)], tar_format, mtime, headers)
    assert walk(data) == tarfile_members(data)


def test_walk_agrees_with_tarfile_on_a_thousand_seeds():
    for seed in range(1000):
        rng = random.Random(seed)
        count = rng.randint(1, 12)
        names = [rng.choice("abc") * rng.randint(1, 96) + f".{number}" for number in range(count)]
        sizes = [rng.choice((0, 1, 511, 512, 513, rng.randint(0, 9000))) for _ in names]
        data = make_tar(names, sizes, rng.choice(list(FORMATS.values())), rng.choice((0, 1.7e9 + 0.3)))
        assert walk(data) == tarfile_members(data), seed


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_walk_agrees_on_names_at_the_limits(tar_format):
    names = ["a" * 100, "b" * 60 + "/" + "c" * 90, "d", "é/ü", "e" * 30 + "/" + "f" * 99]
    data = make_tar(names, [0, 1, 511, 512, 513], tar_format)
    assert [member.name for member in walk(data)] == names
    assert walk(data) == tarfile_members(data)


def test_walk_reads_a_size_that_only_pax_can_hold():
    """A pax size overrides the header's; base-256 sizes are read as well."""
    pieces = b"".join(tar_pieces(MEMBERS[:1]))
    info = tarfile.TarInfo("x")
    info.size, info.pax_headers = 700, {"size": "700"}
    header = bytearray(info.tobuf(tarfile.PAX_FORMAT))
    assert walk(bytes(header) + pieces[1536:]) == [Member("x", 1536, 700)]
    base256 = bytearray(tarfile.TarInfo("y").tobuf(tarfile.GNU_FORMAT))
    base256[124:136] = b"\x80" + (700).to_bytes(11, "big")
    state_checksum(base256)
    assert walk(bytes(base256) + pieces[1536:]) == [Member("y", 512, 700)]


@pytest.mark.parametrize(("field", "size"), [(b"000000000012", 10), (b"000000000128", None)])
def test_a_size_without_an_end_is_read_to_its_last_digit(field, size):
    """Twelve octal digits, as some writers do; after a member whose header is the same but for the size."""
    data = bytearray(make_tar(["a", "b"], [10, 10], tarfile.GNU_FORMAT))
    header = data[1024:1536]
    header[124:136] = field
    state_checksum(header)
    data[1024:1536] = header
    if size is None:
        with pytest.raises(BadTar, match="octal digits"):
            walk(bytes(data))
    else:
        assert walk(bytes(data))[1] == tarfile_members(bytes(data))[1] == Member("b", 1536, size)


def test_no_damage_loses_a_member():
    """Bytes overwritten or the end cut off anywhere: a fault is raised, or all members are there.

    R10, R21: tarfile reads such tars and may give fewer members without a word.
    """
    sound = b"".join(tar_pieces(MEMBERS))
    expected = [member.offset for member in walk(sound)]
    refused = 0
    for seed in range(4000):
        rng = random.Random(seed)
        place = rng.randrange(len(sound))
        damage = rng.randbytes(rng.choice((1, 8, 600)))
        data = sound[:place] + rng.choice((b"", damage + sound[place + len(damage) :]))
        try:
            assert [member.offset for member in walk(data)] == expected, seed
        except BadTar as fault:
            assert fault.found and fault.expected and fault.where
            refused += 1
    assert 2000 < refused < 4000


@needs_the_walk
def test_the_compiled_walk_takes_only_usual_members():
    """A changed header whose checksum was mended: `walk` compares the faults and members of both ways."""
    seen = {"sound": 0, "refused": 0}
    for seed in range(1500):
        rng = random.Random(seed)
        names = [f"{number:012d}.{suffix}" for number in range(2) for suffix in ("jpg", "json", "txt")]
        sizes = [rng.choice((0, 5, 512, 700)) for _ in names]
        data = bytearray(make_tar(names, sizes, rng.choice(list(FORMATS.values())), rng.choice((5, 1.7e9))))
        start = rng.randrange(min(len(data), 8000)) // 512 * 512
        header = data[start : start + 512]
        header[rng.choice((rng.randrange(100), rng.randrange(124, 136), 156, rng.randrange(512)))] = (
            rng.choice(b"\0 019789/xLg\xff\x80")
        )
        state_checksum(header)
        data[start : start + 512] = header
        try:
            walk(bytes(data))
            seen["sound"] += 1
        except BadTar:
            seen["refused"] += 1
    assert min(seen.values()) > 300, seen


@needs_the_walk
@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_the_compiled_walk_takes_all_but_the_first_member(tar_format):
    """Many batches, with time stamps in pax headers and without."""
    names = [f"{number:05d}.jpg" for number in range(700)]
    data = make_tar(names, [number % 1500 for number in range(700)], tar_format, 1.7e9 + 0.25)
    batches = []

    def find_usual(*args):
        batches.append(tar_walk.find_usual(*args))
        return batches[-1]

    with mock.patch.object(rawtar, "find_usual", find_usual):
        walk(data)
    assert [len(batch) for batch in batches] == [256, 256, 187, 0]


def test_tarfile_would_lose_members_in_silence():
    """R21, R25: the reason for this walk; one damaged header, and tarfile gives 4 of 12 members."""
    data = bytearray(b"".join(tar_pieces(MEMBERS)))
    fifth = walk(bytes(data))[4].offset - 3 * 512
    data[fifth : fifth + 8] = b"\xff" * 8
    assert len(tarfile_members(bytes(data))) == 4
    with pytest.raises(BadTar, match=f"byte {fifth}: found a header with checksum"):
        walk(bytes(data))


def _special(kind: bytes, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


SOUND = b"".join(tar_pieces(MEMBERS))
NO_END = "found the end of the file; expected a header or the end blocks"
END = walk(SOUND)[-1].offset
REFUSED = {
    "empty file": (b"", "byte 0: found 0 bytes; expected a tar"),
    "not a tar": (b"<html>" * 500, "byte 0: found .* in a header"),
    "cut in a payload": (SOUND[:1800], r"byte 1024 member 000000000000.jpg: found 264 bytes; expected 700"),
    "cut in a header": (SOUND[:3300], NO_END),
    "cut before the end blocks": (
        SOUND[:END],
        "found the end of the file; expected a header or the end blocks",
    ),
    "one end block": (SOUND[: END + 512], "found 512 zero bytes; expected two end blocks"),
    "data behind the end": (SOUND + b"x" * 512, "data behind the end blocks"),
    "two tars in one": (SOUND + SOUND, "data behind the end blocks"),
    "a folder": (_special(tarfile.DIRTYPE), "found a folder; expected a regular file"),
    "a symbolic link": (
        _special(tarfile.SYMTYPE),
        "x: found a symbolic link; expected a regular file",
    ),
    "a hard link": (_special(tarfile.LNKTYPE), "found a hard link; expected a regular file"),
    "an unknown type": (_special(b"Z"), "found type 90; expected a regular file"),
    "pax header for nothing": (SOUND[:1024] + bytes(10240), "found the end blocks; expected the member"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    data, message = REFUSED[name]
    with pytest.raises(BadTar, match=message):
        walk(data)


def test_bad_pax_record_is_refused():
    data = bytearray(SOUND)
    data[512:530] = b"99 path=elsewhere\n"
    with pytest.raises(BadTar, match="pax record"):
        walk(bytes(data))
