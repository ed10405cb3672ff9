"""Conversation → the model's own chat format, cut where the answers begin and end.

Nothing is ever searched for in a sample's text. The template is rendered once with a mark in place of
each answer; the text between the marks and the answers are encoded apart and joined as tokens, which
is also what the model meets when it generates: the prompt's tokens, then its own.
"""

from __future__ import annotations

import json
import re
from typing import Any

from shardwright.errors import BuildError
from shardwright.vlm.budgets import (
    ANSWER_NOT_EXACT,
    BAD_CONVERSATION,
    CONTROL_TOKEN,
    EMPTY_ANSWER,
    IMAGE_COUNT_MISMATCH,
    NO_IMAGE,
    TOO_MANY_IMAGES,
    UNSUPPORTED_CONTENT,
    Dropped,
    Limits,
)

IGNORED = -100
ROLES = ("system", "user", "assistant")
_MARK = "\uf8ff"
_PROBE = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Question?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Answer."}]},
]


def read_turns(data: bytes) -> list[dict[str, Any]]:
    """Parse a sample's conversation JSON into turns, each content a list of parts.

    Raises:
        Dropped: It is not a conversation that ends with the assistant.
    """
    try:
        sample = json.loads(data)
        turns = [
            {
                "role": turn["role"],
                "content": [{"type": "text", "text": turn["content"]}]
                if isinstance(turn["content"], str)
                else [dict(part) for part in turn["content"]],
            }
            for turn in sample["conversation"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Dropped(BAD_CONVERSATION, f"{type(error).__name__}: {error}") from error
    if not turns or turns[-1]["role"] != "assistant" or any(turn["role"] not in ROLES for turn in turns):
        raise Dropped(BAD_CONVERSATION, f"roles {[turn['role'] for turn in turns][:9]}")
    for turn in turns:
        _check_parts(turn)
    return turns


def _check_parts(turn: dict[str, Any]) -> None:
    known = ("text",) if turn["role"] != "user" else ("text", "image", "video")
    for part in turn["content"]:
        if part.get("type") not in known:
            raise Dropped(UNSUPPORTED_CONTENT, f"{part.get('type')!r} in a turn of {turn['role']}")
        if part["type"] != "text":
            continue
        if not isinstance(part.get("text"), str):
            raise Dropped(BAD_CONVERSATION, "a text part without text")
        if re.search("[\ud800-\udfff]", part["text"]):
            raise Dropped(BAD_CONVERSATION, "a lone surrogate, which no tokenizer can encode")


class ChatFormat:
    """The chat template and tokenizer of one processor.

    Raises:
        BuildError: The template cannot be cut at its answers.
    """

    def __init__(self, processor: Any, control_tokens: str = "neutralise") -> None:
        self._tokenizer = processor.tokenizer
        self._template = processor.chat_template or self._tokenizer.chat_template
        self._drop_control_tokens = control_tokens == "drop"
        added = self._tokenizer.added_tokens_decoder
        visual = {processor.image_token_id, getattr(processor, "video_token_id", None)}
        self.control_ids = frozenset(
            index for index, token in added.items() if token.special or index in visual
        )
        words = sorted((added[index].content for index in self.control_ids), key=len, reverse=True)
        self._control_words = re.compile("|".join(map(re.escape, words)))
        normalizer = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "normalizer", None)
        self.normalize = normalizer.normalize_str if normalizer else str
        self.end_of_turn = self._check_template()

    def render(self, turns: list[dict[str, Any]], for_answer: bool = False) -> str:
        """Turns in the model's own chat format; with `for_answer`, up to where the assistant begins."""
        return self._tokenizer.apply_chat_template(
            turns,
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=for_answer,
            enable_thinking=False,
        )

    def encode(self, text: str) -> list[int]:
        """Tokens of rendered text; never cut, whatever length the tokenizer was saved with (R39)."""
        return self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]

    def split(self, turns: list[dict[str, Any]]) -> tuple[list[str], list[str], int]:
        """Render a conversation around its answers.

        Returns:
            The rendered text before, between and behind the answers, one more than answers; the
            answers; and how many control tokens stood in the other words, each broken by a space.

        Raises:
            Dropped: The template lost or doubled an answer, or a control token that is not wanted.
        """
        answers, marked, num_broken = [], [], 0
        for turn in turns:
            if turn["role"] == "assistant":
                mark = f"{_MARK}{len(answers)}{_MARK}"
                answers.append("".join(part["text"] for part in turn["content"]))
                marked.append({"role": "assistant", "content": [{"type": "text", "text": mark}]})
                continue
            plain = [self._plain(part) for part in turn["content"]]
            marked.append({**turn, "content": [part for part, _ in plain]})
            num_broken += sum(count for _, count in plain)
        texts = re.split(f"{_MARK}\\d+{_MARK}", self.render(marked))
        if len(texts) != len(answers) + 1:
            raise Dropped(BAD_CONVERSATION, f"the chat template shows {len(texts) - 1} of {len(answers)}")
        return texts, answers, num_broken

    def _plain(self, part: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if part["type"] != "text":
            return part, 0
        text, count = self._control_words.subn(lambda match: f"{match[0][0]} {match[0][1:]}", part["text"])
        if count and self._drop_control_tokens:
            raise Dropped(CONTROL_TOKEN, "in the words of a user")
        return {**part, "text": text.replace(_MARK, "\ufffd")}, count

    def encode_answer(self, text: str) -> tuple[list[int], bool]:
        """Tokens of an answer in plain tokens only.

        Returns:
            The tokens, and whether a control token was spelled out.

        Raises:
            Dropped: Nothing in it, a control token that is not wanted or cannot be spelled out, or a
                tokenizer that does not give the text back.
        """
        if not text.strip():
            raise Dropped(EMPTY_ANSWER, repr(text[:40]))
        found = self._control_words.search(text)
        if found and self._drop_control_tokens:
            raise Dropped(CONTROL_TOKEN, found[0])
        ids = self._tokenizer(
            text, add_special_tokens=False, truncation=False, verbose=False, split_special_tokens=True
        )["input_ids"]
        if self.control_ids.intersection(ids):
            raise Dropped(CONTROL_TOKEN, "this tokenizer cannot spell it out")
        if self.decode(ids) != self.normalize(text):
            raise Dropped(ANSWER_NOT_EXACT, f"the tokens say {self.decode(ids)[:60]!r}")
        return ids, bool(found)

    def decode(self, ids: list[int]) -> str:
        """Text of tokens, control tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _check_template(self) -> int:
        texts, _, _ = self.split(_PROBE)
        prompt = self.render(_PROBE[:1], for_answer=True)
        tail = self.encode(texts[1])
        if texts[0] != prompt or not tail or tail[0] not in self.control_ids:
            raise BuildError(
                "the processor's chat template",
                found=f"{texts[0]!r} before an answer, {prompt!r} before generation, {texts[1]!r} behind it",
                expected="the same text before an answer and before generation, and an end-of-turn token "
                "right behind the answer",
                next_step="use the chat template that the model was trained with",
            )
        return tail[0]


def spread_videos(
    turns: list[dict[str, Any]], members: list[bytes], limits: Limits
) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Deal the stored pictures out to image and video parts, and make each video a row of images.

    A part `{"type": "video", "num_frames": n}` takes the next n pictures.

    Returns:
        Turns without videos, the pictures that they show, and how many videos were thinned.

    Raises:
        Dropped: No pictures, others than the parts name, or more images than allowed.
    """
    if not members:
        raise Dropped(NO_IMAGE, "no image member")
    waiting, shown, num_thinned, num_images = list(members), [], 0, 0
    spread = []
    wanted = sum(_num_pictures(part) for turn in turns for part in turn["content"])
    if wanted != len(members):
        raise Dropped(IMAGE_COUNT_MISMATCH, f"{wanted} in the conversation, {len(members)} stored")
    for turn in turns:
        parts: list[dict[str, Any]] = []
        for part in turn["content"]:
            count = _num_pictures(part)
            own, waiting = waiting[:count], waiting[count:]
            if part["type"] == "video" and count > limits.max_num_frames:
                last = limits.max_num_frames - 1
                own = [own[round(place * (count - 1) / last)] for place in range(last + 1)]
                num_thinned += 1
            num_images += part["type"] == "image"
            shown += own
            parts += [{"type": "image"}] * len(own) if count else [part]
        spread.append({**turn, "content": parts})
    if num_images > limits.max_num_images:
        raise Dropped(TOO_MANY_IMAGES, f"{num_images} images")
    return spread, shown, num_thinned


def _num_pictures(part: dict[str, Any]) -> int:
    if part["type"] == "video":
        count = part.get("num_frames")
        if not isinstance(count, int) or count < 1:
            raise Dropped(UNSUPPORTED_CONTENT, f"a video with num_frames {count!r}")
        return count
    return int(part["type"] == "image")
