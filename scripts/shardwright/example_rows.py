"""Rows of the example's metadata: URLs that fail the way the web fails, pictures in many forms.

Counts are for 360 rows and scale with the number asked for. The same seed gives the same rows.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable
from typing import Any

from shardwright.example_scenes import COLOURS, GREYS, caption, face_boxes, random_scene

START = "http://images.example.invalid"
# "gone" and "refused" are hosts, the rest are behaviours of example_server.
BEHAVIOURS = {
    "404": 28,
    "403": 12,
    "410": 5,
    "500": 6,
    "429": 2,
    "gone": 4,
    "refused": 3,
    "hang": 3,
    "drip": 2,
    "endless": 1,
    "reset": 4,
    "short": 3,
    "loop": 2,
    "to-file": 2,
    "html": 6,
    "svg": 1,
    "empty": 1,
    "truncated": 5,
    "noai": 4,
    "500-once": 6,
    "503-twice": 4,
    "429-once": 3,
    "reset-once": 3,
    "redirect": 8,
    "wrong-type": 4,
    "chunked": 2,
    "gzip": 2,
}
SLOW = ("hang", "drip", "endless")
# The other good pictures are plain colour JPEGs.
FORMS = {
    ("exif3", "jpg"): 2,
    ("exif6", "jpg"): 4,
    ("exif8", "jpg"): 3,
    ("exif5", "jpg"): 1,
    ("grey", "jpg"): 6,
    ("cmyk", "jpg"): 4,
    ("progressive", "jpg"): 6,
    ("grey16", "png"): 3,
    ("rgb16", "png"): 4,
    ("palette", "png"): 5,
    ("alpha", "png"): 5,
    ("grey", "png"): 2,
    ("rgb", "gif"): 2,
    ("bomb", "png"): 1,
    ("rgb", "png"): 40,
    ("rgb", "webp"): 36,
}
SMALL = [(64, 64), (96, 128), (160, 120), (200, 200)]
MIDDLE = [(256, 256), (320, 240), (240, 320), (384, 288), (400, 400), (480, 360)]
LARGE = [(640, 480), (600, 800), (1024, 768), (1600, 1200)]
DIMENSIONS = [*SMALL, *MIDDLE * 4, *LARGE]
FACE_FAULTS = ["null", "empty", "inverted", "inverted", "pixels", "pixels", "nan"]
NUM_FACES = 24
NUM_EXIF_FACES = 2
CONTROL_TOKENS = ["<|im_end|>", " <|image_pad|>"] * 2
BLANK_CAPTIONS = ["", "   ", "\n\t", None]
NUM_DOUBLED_UIDS = 4
FOLDERS = ["my holiday pictures", "фото", "été 2024", "写真"]
SOLID_COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 80),
    "blue": (50, 90, 220),
    "yellow": (230, 200, 40),
    "purple": (150, 70, 190),
    "orange": (230, 120, 30),
}
SOLID_VALIDATION = ("purple", "orange")


def scaled(counts: dict[Any, int], share: float) -> list[Any]:
    """Spell out a table of counts, times `share`, keeping at least one of each."""
    return [key for key, count in counts.items() for _ in range(max(1, round(count * share)))]


def spread(rng: random.Random, items: list[str], num_rows: int) -> list[str]:
    """Put each behaviour on a row; the slow ones far apart, so that no shard waits for two."""
    slots = ["ok"] * num_rows
    slow = [item for item in items if item in SLOW]
    step = num_rows / max(1, len(slow))
    for number, item in enumerate(slow):
        slots[int((number + 0.5) * step)] = item
    free = [index for index, slot in enumerate(slots) if slot == "ok"]
    others = [item for item in items if item not in SLOW]
    for index, item in zip(
        sorted(rng.sample(free, len(others))), rng.sample(others, len(others)), strict=True
    ):
        slots[index] = item
    return slots


def scene_for(rng: random.Random, form: str) -> str:
    """Pick a scene whose caption is true in the given form."""
    if form == "bomb":
        return "solid-black"
    if form in ("alpha", "palette"):  # the ground is transparent, and a decoder mats it on white
        paint = rng.choice([colour for colour in COLOURS if colour != "white"])
        return f"{rng.choice(['large', 'small'])}-{paint}-{rng.choice(['circle', 'square'])}-on-white"
    return random_scene(rng, GREYS if form.startswith("grey") else tuple(COLOURS))


def url_of(behaviour: str, scene: str, name: str, folder: str = "") -> str:
    """Return the URL of one row, not percent-encoded, as web pages have them."""
    tail = "/".join(part for part in (scene, folder, name) if part)
    if behaviour == "gone":
        return f"http://gone.example.invalid/ok/{tail}"
    if behaviour == "refused":
        return f"http://127.0.0.1:9/ok/{tail}"
    return f"{START}/{behaviour}/{tail}"


def _row(rng: random.Random, uid: str, scene: str, url: str, stored: tuple[int, int], body: bytes) -> dict:
    return {
        "uid": uid,
        "url": url,
        "text": caption(scene),
        "original_width": stored[0],
        "original_height": stored[1],
        "clip_b32_similarity_score": round(rng.uniform(0.2, 0.4), 6),
        "clip_l14_similarity_score": round(rng.uniform(0.2, 0.35), 6),
        "face_bboxes": [],
        "sha256": hashlib.sha256(body).hexdigest(),
    }


def make_row(
    rng: random.Random,
    index: int,
    behaviour: str,
    form: str,
    suffix: str,
    scene: str,
    folder: str,
    size: tuple[int, int] | None = None,
) -> dict:
    """Make one row of metadata, true about the picture that the server would draw."""
    from shardwright.example_pictures import BOMB_SIDE_PX, picture

    width, height = (BOMB_SIDE_PX, BOMB_SIDE_PX) if form == "bomb" else size or rng.choice(DIMENSIONS)
    body = picture(scene, width, height, form, index, suffix)
    stored = (height, width) if form in ("exif5", "exif6", "exif7", "exif8") else (width, height)
    uid = hashlib.sha256(f"shardwright example {scene} {index}".encode()).hexdigest()[:32]
    url = url_of(behaviour, scene, f"{width}x{height}-{form}-{index}.{suffix}", folder)
    row = _row(rng, uid, scene, url, stored, body)
    boxes = face_boxes(scene, width, height, index)
    if form == "exif6":  # stored a quarter turn to the left: (x, y) upright lies at (y, 1 - x)
        boxes = [[y0, round(1 - x1, 6), y1, round(1 - x0, 6)] for x0, y0, x1, y1 in boxes]
    row["face_bboxes"] = boxes
    return row


def spoil_boxes(row: dict, fault: str) -> None:
    """Give a row with faces one of the bad box lists that real metadata holds."""
    boxes = row["face_bboxes"]
    size = (row["original_width"], row["original_height"]) * 2
    row["face_bboxes"] = {
        "null": None,
        "empty": [],
        "inverted": [[box[2], box[3], box[0], box[1]] for box in boxes],
        "pixels": [[edge * extent for edge, extent in zip(box, size, strict=True)] for box in boxes],
        "nan": [[float("nan"), *box[1:]] for box in boxes],
    }[fault]


def _spoil_captions_and_uids(rows: list[dict], take: Callable[[int], list[int]]) -> None:
    """Give some good rows blank captions, chat-control tokens, or another row's uid."""
    for index, text in zip(take(len(BLANK_CAPTIONS)), BLANK_CAPTIONS, strict=False):
        rows[index]["text"] = text
    for index, token in zip(take(len(CONTROL_TOKENS)), CONTROL_TOKENS, strict=False):
        rows[index]["text"] += token
    first, second = take(NUM_DOUBLED_UIDS), take(NUM_DOUBLED_UIDS)
    for index, other in zip(first, second, strict=True):
        rows[other]["uid"] = rows[index]["uid"]


def web_rows(seed: int, num_rows: int) -> list[dict]:
    """Make rows that fail and vary the way a web crawl does."""
    rng = random.Random(f"shardwright {seed}")
    share = num_rows / 360
    behaviours = spread(rng, scaled(BEHAVIOURS, share), num_rows)
    plain = [index for index, behaviour in enumerate(behaviours) if behaviour == "ok"]
    rng.shuffle(plain)

    def take(count: int) -> list[int]:
        return [plain.pop() for _ in range(max(1, round(count * share)))]

    kinds = dict.fromkeys(range(num_rows), ("rgb", "jpg"))
    for kind in scaled(FORMS, share):
        kinds[plain.pop()] = kind
    faces, exif_faces = take(NUM_FACES), take(NUM_EXIF_FACES)
    kinds.update(dict.fromkeys(exif_faces, ("exif6", "jpg")))
    scenes = {index: scene_for(rng, kinds[index][0]) for index in range(num_rows)}
    for number, index in enumerate([*faces, *exif_faces]):
        ground = rng.choice([colour for colour in COLOURS if colour != "yellow"])
        scenes[index] = f"{('one-face', 'two-faces')[number % 2]}-on-{ground}"
    folders = dict(zip(take(len(FOLDERS)), FOLDERS, strict=False))
    rows = [
        make_row(rng, index, behaviours[index], *kinds[index], scenes[index], folders.get(index, ""))
        for index in range(num_rows)
    ]
    for index, fault in zip(faces, FACE_FAULTS, strict=False):
        spoil_boxes(rows[index], fault)
    _spoil_captions_and_uids(rows, take)
    return rows


def solid_rows(seed: int, num_rows: int) -> list[dict]:
    """Make rows of solid-colour PNGs that all download: shades of four colours to train, two to validate.

    A uid decides by its hash where its sample goes (validation_fraction 0.5), so each is picked to fit.
    """
    from shardwright.selection import in_validation

    rng = random.Random(f"shardwright solid {seed}")
    rows = []
    for index in range(num_rows):
        name, centre = list(SOLID_COLOURS.items())[index % len(SOLID_COLOURS)]
        reach = 0 if index < len(SOLID_COLOURS) else 12
        shade = [value + rng.randint(-reach, reach) for value in centre]
        scene = f"solid-{bytes(shade).hex()}"
        row = make_row(rng, index, "ok", "rgb", "png", scene, "", (448, 448))
        tries = (hashlib.sha256(f"{scene} {index} {n}".encode()).hexdigest()[:32] for n in itertools.count())
        wanted = name in SOLID_VALIDATION
        row["uid"] = next(uid for uid in tries if in_validation([uid], 0.5)[0] == wanted)
        rows.append({**row, "text": f"The image is {name}."})
    return rows
