"""Is what a model says of held-out pictures right? Compare captions as wholes and by named facts."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from shardwright.errors import BuildError

WHOLE = "whole caption"
CONVERSATION = ".conversation.json"


def parse_facts(text: str) -> dict[str, list[str]]:
    """Parse `colours=red green;shapes=circle square`: facts by name, each a list of words."""
    facts = {}
    for part in filter(None, text.split(";")):
        name, _, words = part.partition("=")
        facts[name.strip()] = words.split()
    return facts


def read_split(dataset: Path, tars: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a split's samples by tar and uid, one tar's pictures in memory: uid, JPEG, question, caption."""
    for name in tars:
        with tarfile.open(dataset / name) as archive:
            members = {member.name: archive.extractfile(member).read() for member in archive}
        for key in sorted(name for name in members if name.endswith(CONVERSATION)):
            uid = key.removesuffix(CONVERSATION)
            question, answer = json.loads(members[key])["conversation"]
            caption = answer["content"][0]["text"]
            picture = members[f"{uid}.image.jpg"]
            yield {"uid": uid, "picture": picture, "question": question, "caption": caption}


def read_captions(dataset: Path, tars: list[str]) -> Iterator[str]:
    """Yield a split's captions in order of the tars; no picture is read."""
    for name in tars:
        with tarfile.open(dataset / name) as archive:
            for member in archive:
                if member.name.endswith(CONVERSATION):
                    answer = json.loads(archive.extractfile(member).read())["conversation"][1]
                    yield answer["content"][0]["text"]


@torch.no_grad()
def describe(model: Any, processor: Any, samples: list[dict[str, Any]], batch_size: int = 16) -> list[str]:
    """Let a model caption pictures greedily; the last text of each answer is cut at its end of turn."""
    import io

    from PIL import Image

    processor.tokenizer.padding_side = "left"
    longest = max(len(processor.tokenizer(sample["caption"])["input_ids"]) for sample in samples)
    said: list[str] = []
    for start in range(0, len(samples), batch_size):
        part = samples[start : start + batch_size]
        texts = [
            processor.apply_chat_template([s["question"]], tokenize=False, add_generation_prompt=True)
            for s in part
        ]
        pictures = [Image.open(io.BytesIO(sample["picture"])).convert("RGB") for sample in part]
        inputs = processor(text=texts, images=pictures, padding=True, return_tensors="pt")
        tokens = model.generate(**inputs, max_new_tokens=longest + 2, do_sample=False)
        answers = tokens[:, inputs["input_ids"].shape[1] :]
        said += processor.tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [text.strip() for text in said]


def pick(text: str, words: list[str]) -> tuple[str, ...]:
    """The words of a text that are in `words`, in order."""
    return tuple(word for word in text.lower().replace(",", " ").replace(".", " ").split() if word in words)


def grade(said: list[str], captions: list[str], facts: dict[str, list[str]]) -> dict[str, int]:
    """Count right answers: the whole caption, and for each fact all its words in order."""
    pairs = list(zip(said, captions, strict=True))
    right = {WHOLE: sum(one.lower().split() == two.lower().split() for one, two in pairs)}
    for name, words in facts.items():
        right[name] = sum(pick(one, words) == pick(two, words) for one, two in pairs)
    return right


def blind_guess(train: list[str], captions: list[str], facts: dict[str, list[str]]) -> dict[str, int]:
    """How often one would be right without looking: always the train split's most frequent answer."""
    common = Counter(" ".join(text.lower().split()) for text in train).most_common(1)[0][0]
    right = {WHOLE: sum(" ".join(text.lower().split()) == common for text in captions)}
    for name, words in facts.items():
        guess = Counter(pick(text, words) for text in train).most_common(1)[0][0]
        right[name] = sum(pick(text, words) == guess for text in captions)
    return right


def check_learned(right: dict[str, dict[str, int]], num_samples: int) -> None:
    """Check that training made answers right more often than the base model and blind guessing.

    Args:
        right: By who answers (`base`, `trained`, `blind`), then by fact.
        num_samples: Pictures asked about.

    Raises:
        BuildError: In no fact more often than both, or in some fact less often than the base.
    """
    facts = right["trained"]
    better = [name for name in facts if facts[name] > max(right["base"][name], right["blind"][name])]
    worse = [name for name in facts if facts[name] < right["base"][name]]
    if not better or worse:
        told = "; ".join(
            f"{name}: {facts[name]} (base {right['base'][name]}, blind {right['blind'][name]})"
            for name in facts
        )
        raise BuildError(
            f"captions of {num_samples} held-out pictures",
            found=f"right answers {told}",
            expected="more than the base model and than blind guessing in a fact, and nowhere fewer",
            next_step="train longer (train.steps), or look at the metrics for a loss that does not fall",
        )
