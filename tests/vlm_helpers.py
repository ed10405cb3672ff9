"""Small Energon datasets of conversations about drawn pictures, and the example's processor."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
MODEL = CHECKOUT / "config/example/model"
PROMPT = "Describe this image."
WORDS = (
    "a",
    "red",
    "green",
    "blue",
    "round",
    "small",
    "large",
    "square",
    "circle",
    "on",
    "the",
    "table",
    "and",
)


def make_picture(seed: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A JPEG of one colour, drawn from `seed`."""
    from PIL import Image

    colour = tuple(random.Random(seed).randrange(256) for _ in range(3))
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "JPEG")
    return stream.getvalue()


def make_caption(seed: int) -> str:
    """A caption of 3 to 12 words, drawn from `seed`."""
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 12)))


def conversation(caption: str, uid: str, num_images: int = 1, prompt: str = PROMPT) -> bytes:
    """A sample's JSON: one question with its pictures, one answer."""
    question = [{"type": "image"}] * num_images + [{"type": "text", "text": prompt}]
    answer = [{"type": "text", "text": caption}]
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"conversation": turns, "source": {"uid": uid}}, ensure_ascii=False).encode()


def make_sample(number: int, caption: str | None = None, **changed: Any) -> dict[str, Any]:
    """One sample: uid and members by suffix. `size` is the picture's, `members` overrides members."""
    uid = f"{number:032x}"
    told = make_caption(number) if caption is None else caption
    members = {
        "image.jpg": make_picture(number, changed.get("size", (64, 48))),
        "conversation.json": conversation(told, uid),
    }
    members |= changed.get("members", {})
    return {"uid": uid, "members": {name: data for name, data in members.items() if data is not None}}


def write_tar(path: Path, samples: list[dict[str, Any]]) -> None:
    """Write samples to one tar."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for sample in samples:
            for suffix, data in sample["members"].items():
                info = tarfile.TarInfo(f"{sample['uid']}.{suffix}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def write_dataset(folder: Path, splits: dict[str, list[list[dict[str, Any]]]]) -> Path:
    """Write tars of each split and prepare them with Energon's own tool; returns the folder."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    folder.mkdir(parents=True)
    names = []
    for split, tars in splits.items():
        for number, samples in enumerate(tars):
            names.append(f"{split}-shard-{number:06d}.tar")
            write_tar(folder / names[-1], samples)
    WebdatasetPreparator.prepare_dataset(
        EPath(folder),
        names,
        split_parts_patterns=[(split, f"{split}-shard-.*") for split in splits],
        progress_fn=lambda items, total: items,
        workers=1,
    )
    declaration = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {}}
    (folder / ".nv-meta/shardwright.yaml").write_text(yaml.safe_dump(declaration))
    return folder


def limits(**changed: Any) -> Any:
    """The data section: schema defaults, the tiny model's picture sizes, plus `changed`."""
    from shardwright.vlm.budgets import Limits

    schema = yaml.safe_load((CHECKOUT / "config/schema/data.yaml").read_text())
    base = {key: about["default"] for key, about in schema["properties"].items()}
    small = {"seq_length": 256, "min_pixels": 1024, "max_pixels": 4096, "shuffle_buffer_size": 4}
    return Limits(**{**base, **small, **changed})


def load_processor() -> Any:
    """A fresh processor of the example's model."""
    from shardwright.vlm import models

    return models.load_processor(MODEL)


def make_encoder(pack: bool = False, **changed: Any) -> Any:
    """A task encoder over the example's processor."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    return VLMTaskEncoder(load_processor(), limits(**changed), pack)


def raw_sample(sample: dict[str, Any]) -> Any:
    """A sample as the loader hands it to the encoder."""
    from shardwright.vlm.encoder import cook

    return cook({"__key__": sample["uid"], "__restore_key__": (), **sample["members"]})
