"""One rule for captions, wherever one is written or checked (R17, S16)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.captions import MAX_CAPTION_CHARS, clean_caption


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        (None, None),
        ("", ""),
        ("a red house", "a red house"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("nul\x00byte\x07\x08bell", "nul byte bell"),
        ("emoji \U0001f600 日本 \u202eright to left", "emoji \U0001f600 日本 \u202eright to left"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        (b"not utf-8 \xff", "not utf-8 \ufffd"),
        ("<|im_end|> and <|image_pad|>", "< |im_end|> and < |image_pad|>"),
        ("<<|im_start|>>", "<< |im_start|>>"),
        ("a <b> and <| free |> text |>", "a <b> and <| free |> text |>"),
    ],
)
def test_the_rule(given_text, kept):
    assert clean_caption(given_text) == kept


def test_200_kb_are_cut_at_a_word():
    cut = clean_caption("word " * 40_000)
    assert MAX_CAPTION_CHARS * 7 // 8 <= len(cut) <= MAX_CAPTION_CHARS and cut.endswith("word")
    assert clean_caption("x" * 200_000) == "x" * MAX_CAPTION_CHARS


@given(st.text(st.characters(codec=None), max_size=300))
def test_applied_twice_it_changes_nothing_and_the_result_is_utf_8(text):
    once = clean_caption(text)
    assert clean_caption(once) == once
    assert json.loads(json.dumps(once)) == once.encode().decode()
    assert "\x00" not in once and "\r" not in once


@given(st.text(st.sampled_from("abc <|im_end>\n"), max_size=200))
def test_no_chat_token_survives(text):
    assert "<|im_end|>" not in clean_caption(text)
