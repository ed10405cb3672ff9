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
    UNSUPPORTED_CONTENT,
    Dropped,
)

IGNORED = -100
ROLES = ("system", "user", "assistant")
_MARK = "\uf8ff"
_PROBE = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Question?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Answer."}]},
]


def read_turns(data: bytes) -> tuple[list[dict[str, Any]], str | None]:
    """Parse a sample's conversation JSON.

    Returns:
        The turns, each content a list of parts, and the uid that the sample's source names, if any.

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
        uid = (sample.get("source") or {}).get("uid")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Dropped(BAD_CONVERSATION, f"{type(error).__name__}: {error}") from error
    if not turns or turns[-1]["role"] != "assistant" or any(turn["role"] not in ROLES for turn in turns):
        raise Dropped(BAD_CONVERSATION, f"roles {[turn['role'] for turn in turns][:9]}")
    for turn in turns:
        _check_parts(turn)
    return turns, uid


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
        self.control_ids = frozenset(index for index, token in added.items() if token.special)
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

    def split(self, turns: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        """Render a conversation around its answers.

        Returns:
            The rendered text before, between and behind the answers, and the answers: one text more
            than answers. Control tokens that stand in somebody's words are broken by a space.

        Raises:
            Dropped: The template lost or doubled an answer.
        """
        answers, marked = [], []
        for turn in turns:
            if turn["role"] == "assistant":
                mark = f"{_MARK}{len(answers)}{_MARK}"
                answers.append("".join(part["text"] for part in turn["content"]))
                marked.append({"role": "assistant", "content": [{"type": "text", "text": mark}]})
            else:
                marked.append({**turn, "content": [self._plain(part) for part in turn["content"]]})
        texts = re.split(f"{_MARK}\\d+{_MARK}", self.render(marked))
        if len(texts) != len(answers) + 1:
            raise Dropped(BAD_CONVERSATION, f"the chat template shows {len(texts) - 1} of {len(answers)}")
        return texts, answers

    def _plain(self, part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] != "text":
            return part
        broken = self._control_words.sub(lambda match: f"{match[0][0]} {match[0][1:]}", part["text"])
        return {**part, "text": broken.replace(_MARK, "\ufffd")}

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
        texts, _ = self.split(_PROBE)
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
