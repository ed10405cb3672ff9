"""Make the example's model repository: a tiny Qwen3-VL, its own trained tokenizer, a processor.

    make_example_model.py --folder config/example/model --pins config/pins/tiny-model.tsv

Every part is of the real kind (Qwen3VLForConditionalGeneration, a byte-level BPE tokenizer, Qwen3-VL's
processor), only small: the weights are drawn at random from a seed, the tokenizer is trained on the
captions of the example. The files are committed, and the build fetches and verifies them like any
other model repository's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shardwright.errors import run_cli
from shardwright.files import CHECKOUT, sha256_file

SEED = 20261129
VOCAB_SIZE = 640
PATCH_SIZE_PX = 16
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
ROLES = "system user assistant"

# A turn is <|im_start|>role, a newline, the content, <|im_end|>, a newline: the form Qwen's models know.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""


def train_tokenizer(texts: list[str]) -> Any:
    """Train a byte-level BPE tokenizer of VOCAB_SIZE tokens; any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    named = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>",
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=named,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def make_processor(tokenizer: Any) -> Any:
    """Put Qwen3-VL's processor around the tokenizer: 16-px patches, merged two by two."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    grid = {"patch_size": PATCH_SIZE_PX, "temporal_patch_size": 2, "merge_size": 2}
    scale = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    images = Qwen2VLImageProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 128 * 128}, **grid, **scale
    )
    videos = Qwen3VLVideoProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 4 * 128 * 128}, **grid, **scale
    )
    return Qwen3VLProcessor(images, tokenizer, videos, chat_template=CHAT_TEMPLATE)


def make_model(tokenizer: Any) -> Any:
    """Draw a Qwen3-VL of about 430,000 parameters: 2 text layers, 2 vision blocks, deep-stack included."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    token_id = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 4]},
        "eos_token_id": token_id("<|im_end|>"),
        "pad_token_id": token_id("<|endoftext|>"),
        "initializer_range": 0.05,
    }
    vision = {
        "depth": 2,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": PATCH_SIZE_PX,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 96,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.05,
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    torch.manual_seed(SEED)
    return Qwen3VLForConditionalGeneration(config)


def example_texts(metadata: Path) -> list[str]:
    """Captions of the example's parquets, in file and row order, and the words of a chat."""
    import pyarrow.parquet

    texts = [ROLES, "Describe this image."]
    for path in sorted(metadata.glob("*.parquet")):
        column = pyarrow.parquet.read_table(path, columns=["text"])["text"]
        texts += [text for text in column.to_pylist() if text]
    return texts


def main(argv: list[str] | None = None) -> None:
    """Write the model repository and its pin table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "config/example/model")
    parser.add_argument("--pins", type=Path, default=CHECKOUT / "config/pins/tiny-model.tsv")
    parser.add_argument("--metadata", type=Path, default=CHECKOUT / "config/example/metadata")
    args = parser.parse_args(argv)
    tokenizer = train_tokenizer(example_texts(args.metadata))
    model = make_model(tokenizer)
    make_processor(tokenizer).save_pretrained(args.folder)
    model.save_pretrained(args.folder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    rows = ["file\tbytes\tsha256"]
    for path in sorted(args.folder.iterdir()):
        path.chmod(0o644)
        rows.append(f"{path.name}\t{path.stat().st_size}\t{sha256_file(path)}")
    args.pins.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    run_cli(main)
