"""A tiny random Qwen3-VL, batches made from a seed, and settings for tests of the training parts."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
IMAGE, VISION_START, VISION_END, PAD = 60, 61, 62, 0


def settings(**changed: Any) -> dict[str, Any]:
    """The train section with its schema defaults, made small and quick, plus `changed`."""
    schema = yaml.safe_load((CHECKOUT / "config/schema/train.yaml").read_text())
    base = {key: about.get("default") for key, about in schema["properties"].items()}
    small = {
        "accelerator": "cpu",
        "ranks_per_node": 1,
        "parallel": "ddp",
        "dtype": "fp32",
        "adapter_rank": 4,
        "steps": 6,
        "micro_batch_size": 2,
        "global_batch_size": 4,
        "learning_rate": 0.01,
        "warmup_steps": 1,
        "loader_workers": 0,
        "validation_every": 0,
        "checkpoint_every": 2,
        "tensorboard": False,
        "activation_checkpointing": False,
        "adapter_targets": "q_proj v_proj",
    }
    unknown = set(changed) - set(base)
    assert not unknown, unknown
    return {**base, **small, **changed}


def tiny_model(kind: str = "Qwen3VL", seed: int = 0) -> Any:
    """A model of a few thousand random parameters: 2 text layers, 1 vision block.

    Args:
        kind: `Qwen3VL`, `Qwen3VLMoe`, or `Qwen3_5Moe`, whose first layer is linear attention.
        seed: Of the parameters.
    """
    import torch
    import transformers

    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
        "tie_word_embeddings": False,
    }
    if kind.endswith("Moe"):
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        text |= {"decoder_sparse_step": 1, "shared_expert_intermediate_size": 16}
    if kind == "Qwen3_5Moe":
        text["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        text |= {"layer_types": ["linear_attention", "full_attention"]}
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
    }
    if kind != "Qwen3_5Moe":
        vision["deepstack_visual_indexes"] = [0]
    config = getattr(transformers, f"{kind}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


def make_batch(seed: int, size: int = 2, supervised: bool = True) -> dict[str, Any]:
    """One batch as the loader gives it: a prompt with one image each, then a caption of 3 to 8 tokens."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(size):
        caption = torch.randint(
            1, 59, (int(torch.randint(3, 9, (1,), generator=rng)),), generator=rng
        ).tolist()
        prompt = [1, VISION_START, IMAGE, IMAGE, IMAGE, IMAGE, VISION_END, 2, 3]
        rows.append(
            (prompt + caption, [-100] * len(prompt) + (caption if supervised else [-100] * len(caption)))
        )
    width = max(len(ids) for ids, _ in rows)
    input_ids = torch.tensor([ids + [PAD] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
    return {
        "input_ids": input_ids,
        "attention_mask": mask,
        "labels": labels,
        "mm_token_type_ids": (input_ids == IMAGE).long(),
        "pixel_values": torch.randn((size * 16, 3 * 2 * 4 * 4), generator=rng),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * size),
        "uids": [f"{seed:08x}{row:024x}" for row in range(size)],
        "num_supervised": (labels != -100).sum(1),
    }


class SyntheticLoader:
    """Endless micro batches, numbered through the run: by place in time, then rank.

    Args:
        rank: This rank.
        world_size: All ranks.
        size: Samples in a batch.
        nan_at: Number of a batch with a pixel that is not a number.
        empty: Numbers of batches without supervised tokens.
        drops: Drops by reason that each batch reports.
        slow_s: Seconds that a batch takes.
    """

    def __init__(self, rank, world_size, size, nan_at=-1, empty=(), drops=None, slow_s=0.0) -> None:
        self._rank, self._world_size, self._size, self._next = rank, world_size, size, 0
        self._nan_at, self._empty, self._drops, self._slow_s = nan_at, empty, drops or {}, slow_s
        self.fail_at = -1
        self.drops: Counter[str] = Counter()

    def __iter__(self) -> SyntheticLoader:
        return self

    def __next__(self) -> dict[str, Any]:
        number = self._next * self._world_size + self._rank
        if number == self.fail_at:
            raise OSError("gone")
        self._next += 1
        time.sleep(self._slow_s)
        batch = make_batch(number, self._size, supervised=number not in self._empty)
        if number == self._nan_at:
            batch["pixel_values"][0, 0] = float("nan")
        self.drops.update(self._drops)
        return batch

    def save_state_rank(self) -> tuple[int, Counter[str]]:
        """The loader's place and counts, as the checkpoint keeps them."""
        return self._next, self.drops

    def restore_state_rank(self, state: tuple[int, Counter[str]]) -> None:
        """Go on from a place that was saved."""
        self._next, self.drops = state


class SyntheticFeed:
    """What setup.build_run asks for, from synthetic batches; keyword arguments as SyntheticLoader's."""

    def __init__(
        self,
        asked: dict[str, Any],
        parameters: str = "",
        num_val: int = 3,
        import_dir: Path | None = None,
        **loader: Any,
    ) -> None:
        self.sources = SimpleNamespace(
            targets=asked["adapter_targets"].split(),
            target_parameters=parameters.split(),
            import_dir=import_dir,
        )
        self._size, self._num_val, self._loader = asked["micro_batch_size"], num_val, loader

    def train(self, rank: int, world_size: int) -> SyntheticLoader:
        """This rank's loader."""
        return SyntheticLoader(rank, world_size, self._size, **self._loader)

    def validation(self) -> list[dict[str, Any]]:
        """The val split: two samples a batch."""
        return [make_batch(1000 + number, 2) for number in range(self._num_val)]
