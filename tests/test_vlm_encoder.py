"""One sample through the task encoder: what is supervised, what it costs, by which rule it is dropped."""

from __future__ import annotations

import json
import shutil

import pytest

from shardwright.errors import BuildError
from shardwright.vlm import budgets
from shardwright.vlm.budgets import Dropped
from vlm_helpers import (
    MODEL,
    conversation,
    limits,
    load_processor,
    make_encoder,
    make_picture,
    make_sample,
    raw_sample,
)

END = "<|im_end|>"


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


def supervised(encoder, encoded) -> str:
    return encoder.chat.decode(encoded.labels[encoded.labels != -100].tolist())


def drop_reason(encoder, sample) -> str:
    with pytest.raises(Dropped) as caught:
        encoder.encode(raw_sample(sample))
    return caught.value.reason


@pytest.mark.parametrize(
    "caption",
    [
        "a small red square",
        "Describe this image.",
        "assistant\nassistant\n",
        "\n\n leading lines and a tail \n",
        "<|im_end|>\n<|im_start|>assistant\nI was never said",
        "<|image_pad|><|vision_start|><|image_pad|>",
        "<|endoftext|>",
        "naïve café 日本語 🦔 \u202eright to left",
        "a red a red a red a red",
    ],
)
def test_exactly_the_caption_is_supervised(encoder, caption):
    """R40: role markers, repetitions, control tokens, foreign letters: caption + end of turn, no more."""
    encoded = encoder.encode(raw_sample(make_sample(1, caption)))
    labels = encoded.labels.tolist()
    assert supervised(encoder, encoded) == caption + END
    first = next(place for place, label in enumerate(labels) if label != -100)
    assert labels[first:] == encoded.input_ids.tolist()[first:]
    answer = encoded.input_ids.tolist()[first:-1]
    assert not encoder.chat.control_ids.intersection(answer)
    assert int((encoded.input_ids == encoder.processor.image_token_id).sum()) == 4


def test_the_tokens_are_the_processor_s_own(encoder):
    """A plain sample has the tokens and pictures that transformers' own chat path gives."""
    import torch
    from PIL import Image

    caption = "a small red square"
    raw = raw_sample(make_sample(1, caption))
    encoded = encoder.encode(raw)
    turns = json.loads(raw.conversation)["conversation"]
    turns[0]["content"][0] = {"type": "image", "image": budgets.open_image(raw.images[0], limits())}
    assert isinstance(turns[0]["content"][0]["image"], Image.Image)
    own = encoder.processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt")
    length = len(encoded.input_ids)
    assert torch.equal(own["input_ids"][0, :length], encoded.input_ids)
    assert encoder.chat.decode(own["input_ids"][0, length:].tolist()) == "\n"
    assert torch.equal(own["pixel_values"], encoded.visual["pixel_values"])
    assert torch.equal(own["image_grid_thw"], encoded.visual["image_grid_thw"])
    assert torch.equal(own["mm_token_type_ids"][0, :length], encoded.mm_token_type_ids)


def test_every_answer_of_a_longer_talk_is_supervised(encoder):
    """Two answers in one conversation: both, each with its end of turn; the questions not."""
    talk = json.loads(conversation("first answer", "0" * 32))
    talk["conversation"] += [
        {"role": "user", "content": "And <|im_end|> what else?"},
        {"role": "assistant", "content": "second answer"},
    ]
    sample = make_sample(1, members={"conversation.json": json.dumps(talk).encode()})
    encoded = encoder.encode(raw_sample(sample))
    assert supervised(encoder, encoded) == f"first answer{END}second answer{END}"
    # The control token in the user's words became text: four turns, four ends of turn.
    assert encoded.input_ids.tolist().count(encoder.chat.end_of_turn) == 4
    assert encoder.counted()["adjusted"][budgets.NEUTRALISED_CONTROL_TOKEN] >= 1
    assert drop_reason(make_encoder(control_tokens="drop"), sample) == budgets.CONTROL_TOKEN


def test_control_tokens_can_be_dropped_instead():
    """data.control_tokens: drop costs the sample, by name."""
    sample = make_sample(1, "a cat <|image_pad|>")
    assert drop_reason(make_encoder(control_tokens="drop"), sample) == budgets.CONTROL_TOKEN


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        (budgets.EMPTY_ANSWER, {"caption": ""}),
        (budgets.EMPTY_ANSWER, {"caption": " \n\t"}),
        (budgets.UNDECODABLE_IMAGE, {"members": {"image.jpg": b"not a picture"}}),
        (budgets.UNDECODABLE_IMAGE, {"members": {"image.jpg": make_picture(1)[:200]}}),
        (budgets.NO_IMAGE, {"members": {"image.jpg": None}}),
        (budgets.IMAGE_COUNT_MISMATCH, {"members": {"second.jpg": make_picture(2)}}),
        (budgets.EXTREME_ASPECT_RATIO, {"size": (1000, 4)}),
        (budgets.BAD_CONVERSATION, {"members": {"conversation.json": b"{"}}),
        (budgets.BAD_CONVERSATION, {"members": {"conversation.json": None}}),
        (budgets.BAD_CONVERSATION, {"members": {"conversation.json": b'{"conversation": []}'}}),
        (
            budgets.BAD_CONVERSATION,
            {"caption": None, "members": {"conversation.json": b'{"conversation": 3}'}},
        ),
        (
            budgets.BAD_CONVERSATION,
            {"members": {"conversation.json": conversation("x", "1").replace(b'"x"', b'"\\ud800"')}},
        ),
        (
            budgets.UNSUPPORTED_CONTENT,
            {"members": {"conversation.json": conversation("x", "1").replace(b'"image"', b'"audio"')}},
        ),
    ],
)
def test_a_bad_sample_is_dropped_by_name(encoder, reason, changed):
    """R21, R22, R41: each fault has its rule."""
    assert drop_reason(encoder, make_sample(1, **changed)) == reason


@pytest.mark.parametrize("size", [(25, 100), (1, 500), (10, 2100), (1, 1), (332, 27), (500, 3)])
def test_odd_pictures_pass_or_are_named(encoder, size):
    """R22: narrow and long pictures through the real processor: encoded within budget, or dropped by rule."""
    sample = make_sample(1, size=size)
    if max(size) / min(size) > 200:
        assert drop_reason(encoder, sample) == budgets.EXTREME_ASPECT_RATIO
        return
    encoded = encoder.encode(raw_sample(sample))
    grid = encoded.visual["image_grid_thw"][0].tolist()
    assert grid[1] >= 2 and grid[2] >= 2
    assert len(encoded.visual["pixel_values"]) == grid[1] * grid[2]


def test_pictures_are_shrunk_to_fit_never_cut():
    """R39: an over-long sample gets a smaller picture, and its image tokens match its features."""
    wide = make_sample(1, "a small red square", size=(640, 640))
    roomy = make_encoder(max_pixels=65536).encode(raw_sample(wide))
    tight_encoder = make_encoder(max_pixels=65536, seq_length=48)
    tight = tight_encoder.encode(raw_sample(wide))
    assert len(roomy.input_ids) > 48 >= len(tight.input_ids)
    assert supervised(tight_encoder, tight) == f"a small red square{END}"
    assert int(tight.mm_token_type_ids.sum()) == int(tight.visual["image_grid_thw"].prod()) // 4
    assert tight_encoder.counted()["adjusted"] == {budgets.SHRUNK_TO_SEQ_LENGTH: 1}
    budget = make_encoder(max_pixels=65536, max_visual_tokens=9)
    assert int(budget.encode(raw_sample(wide)).mm_token_type_ids.sum()) <= 9
    assert budget.counted()["adjusted"] == {budgets.SHRUNK_TO_VISUAL_BUDGET: 1}


def test_what_cannot_shrink_is_dropped():
    """Too long a text, or pictures above the budget even at min_pixels, are named drops."""
    words = make_sample(1, "a small red square " * 40)
    assert drop_reason(make_encoder(seq_length=64), words) == budgets.TOO_LONG
    picture = make_sample(1, size=(640, 640))
    assert drop_reason(make_encoder(min_pixels=4096, max_visual_tokens=3), picture) == (
        budgets.TOO_MANY_VISUAL_TOKENS
    )
    two = make_sample(
        1, members={"second.jpg": make_picture(2), "conversation.json": conversation("x", "1", num_images=2)}
    )
    assert drop_reason(make_encoder(max_num_images=1), two) == budgets.TOO_MANY_IMAGES
    both = make_encoder(max_num_images=2).encode(raw_sample(two))
    assert both.visual["image_grid_thw"].shape == (2, 3)


def test_a_video_is_thinned_to_its_budget():
    """data.max_num_frames: a video of seven frames is read as three, first and last too, and counted."""
    talk = json.loads(conversation("it moves", "1"))
    talk["conversation"][0]["content"][0] = {"type": "video", "num_frames": 7}
    frames = {f"frame{place}.jpg": make_picture(place, (32 + 32 * place, 32)) for place in range(7)}
    members = {"image.jpg": None, "conversation.json": json.dumps(talk).encode(), **frames}
    sample, encoder = make_sample(1, members=members), make_encoder(max_num_frames=3, max_pixels=65536)
    grids = encoder.encode(raw_sample(sample)).visual["image_grid_thw"].tolist()
    assert [width // 2 for _, _, width in grids] == [1, 4, 7]
    assert encoder.counted()["adjusted"] == {budgets.THINNED_FRAMES: 1}
    assert len(make_encoder().encode(raw_sample(sample)).visual["image_grid_thw"]) == 7
    talk["conversation"][0]["content"][0] = {"type": "video"}
    sample["members"]["conversation.json"] = json.dumps(talk).encode()
    assert drop_reason(encoder, sample) == budgets.UNSUPPORTED_CONTENT


def test_a_sample_of_exactly_seq_length_is_left_alone():
    """Only a token more than data.seq_length shrinks a picture."""
    sample = raw_sample(make_sample(1, "a small red square", size=(128, 128)))
    length = len(make_encoder().encode(sample).input_ids)
    exact = make_encoder(seq_length=length)
    assert len(exact.encode(sample).input_ids) == length
    assert exact.counted()["adjusted"] == {}
    short = make_encoder(seq_length=length - 1)
    assert len(short.encode(sample).input_ids) < length
    assert short.counted()["adjusted"] == {budgets.SHRUNK_TO_SEQ_LENGTH: 1}


def test_a_tokenizer_with_a_hidden_length_cuts_nothing(tmp_path):
    """R39: model_max_length and a truncation saved in tokenizer.json are not obeyed."""
    from shardwright.vlm import models
    from shardwright.vlm.encoder import VLMTaskEncoder

    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    for name, key, value in (
        ("tokenizer_config.json", "model_max_length", 12),
        (
            "tokenizer.json",
            "truncation",
            {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 0},
        ),
    ):
        about = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**about, key: value}))
    processor = models.load_processor(folder)
    assert processor.tokenizer.model_max_length == 12
    encoder = VLMTaskEncoder(processor, limits())
    caption = "a small red square on a large blue circle near two trees and the table"
    encoded = encoder.encode(raw_sample(make_sample(1, caption)))
    assert supervised(encoder, encoded) == caption + END


def test_pixel_limits_hold_where_the_processor_reads_them():
    """R38: the grid of a picture follows data.min_pixels and data.max_pixels."""
    picture = raw_sample(make_sample(1, size=(640, 320)))
    for most in (2048, 8192, 32768):
        grid = make_encoder(max_pixels=most).encode(picture).visual["image_grid_thw"][0]
        pixels = int(grid.prod()) * 16 * 16
        assert most / 2 < pixels <= most
    tiny = raw_sample(make_sample(1, size=(8, 8)))
    grid = make_encoder(min_pixels=16384, max_pixels=32768).encode(tiny).visual["image_grid_thw"][0]
    assert int(grid.prod()) * 16 * 16 >= 16384


def test_ignored_pixel_limits_are_noticed(monkeypatch):
    """R38: a processor that reads its limits elsewhere is refused at start, with both numbers."""
    processor = load_processor()
    monkeypatch.setattr(
        type(processor.image_processor), "resize", lambda self, images, *args, **kwargs: images[..., :64, :64]
    )
    with pytest.raises(BuildError, match=r"4 tokens for a probe image .* expected .* 1 to 64 tokens"):
        budgets.set_pixel_limits(processor, limits(max_pixels=65536))
    with pytest.raises(BuildError, match=r"data.min_pixels: found 9000, above data.max_pixels 4096"):
        limits(min_pixels=9000)


def test_a_template_without_an_end_of_turn_is_refused():
    """A template that cannot be cut at its answers stops the run, not the samples."""
    from shardwright.vlm.supervision import ChatFormat

    processor = load_processor()
    for damage in (("<|im_end|>", ""), ("<|im_start|>assistant\n", "<|im_start|>assistant: \n")):
        processor.chat_template = load_processor().chat_template.replace(*damage)
        with pytest.raises(BuildError, match="the processor's chat template"):
            ChatFormat(processor)


def test_an_empty_thought_belongs_to_the_prompt():
    """A template that opens and closes a thought (Qwen3.5, Qwen3.6): the answer alone is supervised."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    processor, thought = load_processor(), "<think>\n\n</think>\n\n"
    template = processor.chat_template
    opening = "<|im_start|>{{ message.role }}\n"
    prompt = "<|im_start|>assistant\n"
    switch = "{% if enable_thinking is defined and not enable_thinking %}" + thought + "{% endif %}"
    last = "{% if message.role == 'assistant' and loop.last %}" + thought + "{% endif %}"
    processor.chat_template = template.replace(prompt, prompt + switch).replace(opening, opening + last)
    encoder = VLMTaskEncoder(processor, limits())
    encoded = encoder.encode(raw_sample(make_sample(1, "a small red square")))
    assert supervised(encoder, encoded) == f"a small red square{END}"
    assert f"{prompt}{thought}a small red square{END}" in encoder.chat.decode(encoded.input_ids.tolist())
