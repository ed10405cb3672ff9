"""Damage JPEGs in the ways that transfers, disks and encoders do, from a seed."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator

from PIL import Image

from photos import make_photo


def _flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_tail(data: bytearray, rng: random.Random) -> None:
    del data[len(data) - rng.randint(1, 40) :]


def _zero_run(data: bytearray, rng: random.Random) -> None:
    start, size = rng.randrange(len(data)), rng.randint(1, 300)
    data[start : start + size] = bytes(min(size, len(data) - start))


def _random_run(data: bytearray, rng: random.Random) -> None:
    start, size = rng.randrange(len(data)), rng.randint(1, 300)
    data[start : start + size] = rng.randbytes(min(size, len(data) - start))


def _remove(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 7, 64, 500))]


def _damage_header(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8))):
        data[rng.randrange(min(620, len(data)))] = rng.randrange(256)


def _stray_marker(data: bytearray, rng: random.Random) -> None:
    marker = rng.choice((0xD8, 0xD9, 0xDA, 0xC0, 0xC4, 0xDB, 0xDD, 0xD3, 0xFE, 0xE1, 0xFF, 0x01))
    start = rng.randrange(2, len(data))
    data[start:start] = bytes((0xFF, marker))


def _lost_marker(data: bytearray, rng: random.Random) -> None:
    places = [place for place in range(len(data) - 1) if data[place] == 0xFF and data[place + 1]]
    start = rng.choice(places)
    data[start : start + 2] = rng.choice((b"", b"\0\0"))


def _append(data: bytearray, rng: random.Random) -> None:
    data += rng.choice((rng.randbytes(30), bytes(100), bytes(data[: len(data) // 2])))


def _lost_eoi(data: bytearray, rng: random.Random) -> None:
    del data[-2:]
    if rng.random() < 0.5:
        data += rng.randbytes(rng.randint(0, 3))


def _wrong_size(data: bytearray, rng: random.Random) -> None:
    start = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    data[start + 5 + rng.randrange(4)] ^= rng.randrange(1, 8)


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip_bits,
    _cut,
    _cut_tail,
    _zero_run,
    _random_run,
    _remove,
    _damage_header,
    _stray_marker,
    _lost_marker,
    _append,
    _lost_eoi,
    _wrong_size,
)


def sound_jpegs(width: int, height: int) -> dict[str, bytes]:
    """One JPEG of each kind that a raw shard may hold, by name."""
    cmyk = io.BytesIO()
    Image.open(io.BytesIO(make_photo(7, width, height))).convert("CMYK").save(cmyk, "JPEG")
    return {
        "baseline": make_photo(1, width, height),
        "progressive": make_photo(2, width, height, progressive=True),
        "full chroma": make_photo(3, width, height, subsampling=0, quality=80),
        "grey": make_photo(4, width, height, mode="L"),
        "grey progressive": make_photo(5, width, height, mode="L", progressive=True),
        "restart markers": make_photo(6, width, height, restart_marker_rows=1),
        "CMYK": cmyk.getvalue(),
        "optimised": make_photo(8, width, height, optimize=True, quality=60),
        "tiny": make_photo(9, 7, 5),
    }


def damaged_jpegs(seed: int, rounds: int, width: int = 96, height: int = 72) -> Iterator[tuple[str, bytes]]:
    """Yield (what was done, bytes): `rounds` times each damage on each kind of JPEG."""
    sound = sound_jpegs(width, height)
    for name, jpeg in sound.items():
        yield f"{name}, sound", jpeg
        for damage in DAMAGES:
            for turn in range(rounds):
                rng = random.Random(f"{seed} {name} {damage.__name__} {turn}")
                data = bytearray(jpeg)
                damage(data, rng)
                yield f"{name}{damage.__name__} {turn}", bytes(data)
