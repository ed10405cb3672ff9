"""Scenes of the example pictures: a name for the URL, a true caption, where each thing stands.

A scene's name is the text between hyphens in a URL, for example `large-red-circle-on-white`,
`large-red-circle-above-small-blue-square-on-yellow`, `two-faces-on-blue`, `solid-green`, or
`solid-dc2828` (six hex digits of red, green, blue).
Everything follows from the name, the size in pixels and a seed, so a picture that no parquet
names (a held-out one) is drawn by the same call. Standard library only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COLOURS = {
    "red": (214, 40, 40),
    "green": (32, 150, 62),
    "blue": (38, 70, 200),
    "yellow": (245, 208, 40),
    "black": (16, 16, 16),
    "white": (250, 250, 250),
}
GREYS = ("black", "white")
SHAPES = ("circle", "square", "triangle")
SIZES = ("large", "small")
RELATIONS = {"above": "above", "below": "below", "leftof": "left of", "rightof": "right of"}
COUNTS = {"one": 1, "two": 2}
_OFFSETS = {"above": (0, -1), "below": (0, 1), "leftof": (-1, 0), "rightof": (1, 0)}


@dataclass(frozen=True)
class Thing:
    """One drawn thing: what it is, and its box in pixels (left, top, right, bottom)."""

    kind: str
    colour: str
    box: tuple[float, float, float, float]


def caption(name: str) -> str:
    """Return the sentence that describes the scene `name` truthfully."""
    words = name.split("-")
    if words[0] == "solid":
        return f"a solid {words[1]} picture"
    background = f"on a {words[-1]} background"
    if words[0] in COUNTS:
        what = "a smiling face" if words[0] == "one" else f"{words[0]} smiling faces"
        return f"{what} {background}"
    first, rest = words[:3], words[3:-2]
    text = f"a {' '.join(first)}"
    if rest:
        text += f" {RELATIONS[rest[0]]} a {' '.join(rest[1:])}"
    return f"{text} {background}"


def background(name: str) -> tuple[int, int, int]:
    """Return the red, green and blue of the scene's ground."""
    ground = name.rsplit("-", 1)[-1]
    if ground in COLOURS:
        return COLOURS[ground]
    red, green, blue = bytes.fromhex(ground)
    return red, green, blue


def _box(
    rng: random.Random, size: tuple[int, int], centre: tuple[float, float], radius: float
) -> tuple[float, float, float, float]:
    width, height = size
    side = min(width, height)
    shift = 0.03 * side
    x = centre[0] * width + rng.uniform(-shift, shift)
    y = centre[1] * height + rng.uniform(-shift, shift)
    half = radius * side * rng.uniform(0.92, 1.08)
    return (x - half, y - half, x + half, y + half)


def things(name: str, width: int, height: int, seed: int) -> list[Thing]:
    """Place the things of the scene `name` on a canvas of `width` by `height` pixels.

    Raises:
        ValueError: The name is not that of a scene.
    """
    words = name.split("-")
    rng = random.Random(f"{name} {width}x{height} {seed}")
    size = (width, height)
    if words[0] == "solid":
        return []
    if words[0] in COUNTS:
        centres = [(0.5, 0.5)] if words[0] == "one" else [(0.3, 0.5), (0.7, 0.5)]
        radius = 0.3 if words[0] == "one" else 0.17
        return [Thing("face", "yellow", _box(rng, size, centre, radius)) for centre in centres]
    if len(words) == 5:
        radius = {"large": 0.36, "small": 0.14}[words[0]]
        return [Thing(words[2], words[1], _box(rng, size, (0.5, 0.5), radius))]
    if len(words) != 9 or words[3] not in RELATIONS:
        raise ValueError(f"not a scene: {name!r}")
    dx, dy = _OFFSETS[words[3]]
    placed = []
    for sign, (scale, colour, shape) in ((1, words[:3]), (-1, words[4:7])):
        radius = {"large": 0.2, "small": 0.09}[scale]
        centre = (0.5 + sign * dx * 0.24, 0.5 + sign * dy * 0.24)
        placed.append(Thing(shape, colour, _box(rng, size, centre, radius)))
    return placed


def face_boxes(name: str, width: int, height: int, seed: int) -> list[list[float]]:
    """Return the boxes of the drawn faces as DataComp gives them: x0, y0, x1, y1 in [0, 1]."""
    return [
        [round(edge / extent, 6) for edge, extent in zip(thing.box, (width, height) * 2, strict=True)]
        for thing in things(name, width, height, seed)
        if thing.kind == "face"
    ]


def random_scene(rng: random.Random, colours: tuple[str, ...] = tuple(COLOURS)) -> str:
    """Pick a scene of one thing, or (one time in three) of two things, in the given colours."""
    pairs = rng.random() < 1 / 3 and len(colours) > 2
    ground, *paints = rng.sample(colours, 3 if pairs else 2)
    named = [f"{rng.choice(SIZES)}-{paint}-{rng.choice(SHAPES)}" for paint in paints]
    if pairs:
        named.insert(1, rng.choice(sorted(RELATIONS)))
    return "-".join([*named, "on", ground])
