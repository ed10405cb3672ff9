"""Several samples in one row, each as if it were alone.

A packed row goes to the model without an attention mask and with four rows of positions: the place of
each token in its own sample, then Qwen's three axes (time, height, width). transformers finds the
samples where the first row starts again, and keeps them apart: a block-diagonal mask (sdpa, eager) or
variable-length attention (flash). It does so only when called with `use_cache=False`. Nothing here
trusts that: `check_isolation` tries it on the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from shardwright.errors import BuildError
from shardwright.vlm.supervision import IGNORED

IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
NUM_PROBE_TOKENS = 12


def check_can_pack(config: Any, micro_batch_size: int) -> None:
    """Refuse packing where there is nothing to pack, or where samples cannot be kept apart.

    Args:
        config: The model's transformers config.
        micro_batch_size: Samples of one forward pass.

    Raises:
        BuildError: Micro batch 1, layers that carry a state along the row, or an unknown attention.
    """
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ("full_attention",))
    stateful = sorted(kinds - {"full_attention", "sliding_attention"})
    attention = getattr(config, "_attn_implementation", None) or "sdpa"
    reason = None
    if micro_batch_size < 2:
        reason = "train.micro_batch_size 1: one sample makes no pack", "train.micro_batch_size above 1"
    elif stateful:
        reason = (
            f"layers of kind {', '.join(stateful)}, which carry a state from one sample into the next",
            "attention layers only",
        )
    elif attention not in IMPLEMENTATIONS:
        reason = f"attention implementation {attention}", f"one of {', '.join(IMPLEMENTATIONS)}"
    if reason:
        raise BuildError(
            "config key train.packing",
            found=f"true with {reason[0]}",
            expected=reason[1],
            next_step="set train.packing to false, or change what stands against it",
        )


def sample_positions(types: torch.Tensor, grids: Sequence[Sequence[int]], merge_size: int) -> torch.Tensor:
    """Positions of one sample's tokens on four axes: place in the sample, time, height, width.

    Args:
        types: One number a token: 0 text, 1 image, 2 video frame.
        grids: (height, width) in patches of each image or frame, in order.
        merge_size: Patches along a side that make one token.

    Returns:
        int64 [4, tokens].
    """
    start, parts, waiting = 0, [], iter(grids)
    for kind, group in itertools.groupby(types.tolist()):
        length = len(list(group))
        if kind == 0:
            parts.append(torch.arange(start, start + length).expand(3, -1))
            start += length
            continue
        while length:
            height, width = (int(side) // merge_size for side in next(waiting))
            rows = torch.arange(height).repeat_interleave(width)
            columns = torch.arange(width).repeat(height)
            parts.append(torch.stack([torch.zeros_like(rows), rows, columns]) + start)
            start += max(height, width)
            length -= height * width
    place = torch.arange(len(types)).unsqueeze(0)
    return torch.cat([place, torch.cat(parts, dim=1)])


def pack_rows(samples: Sequence[dict[str, Any]], merge_size: int) -> dict[str, torch.Tensor]:
    """Join encoded samples into one row.

    Args:
        samples: Each with `input_ids`, `labels`, `mm_token_type_ids` (1-D) and `grids`.
        merge_size: Patches along a side that make one token.
    """
    labels = []
    for sample in samples:
        own = sample["labels"].clone()
        own[0] = IGNORED  # the last token of the sample before must not be asked for it
        labels.append(own)
    positions = [
        sample_positions(sample["mm_token_type_ids"], sample["grids"], merge_size) for sample in samples
    ]
    return {
        "input_ids": torch.cat([sample["input_ids"] for sample in samples]).unsqueeze(0),
        "labels": torch.cat(labels).unsqueeze(0),
        "mm_token_type_ids": torch.cat([sample["mm_token_type_ids"] for sample in samples]).unsqueeze(0),
        "position_ids": torch.cat(positions, dim=1).unsqueeze(1),
    }


def _logits(model: nn.Module, parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    ids = torch.cat(list(parts)).unsqueeze(0).to(device)
    places = torch.cat([torch.arange(len(part)) for part in parts]).to(device)
    with torch.no_grad():
        return model(
            input_ids=ids, position_ids=places.expand(4, 1, -1), use_cache=False
        ).logits[0].float()  # fmt: skip


def check_isolation(model: nn.Module, device: torch.device) -> dict[str, float]:
    """Try on the model itself that packed samples do not see each other (collective if sharded).

    Returns:
        `leak`: how far the second sample's logits move when the first changes; `parity`: how far they
        are from those of the second sample alone. Both relative to the largest logit.

    Raises:
        BuildError: Either is more than rounding.
    """
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    config = model.module.config if wrapped else model.config
    check_can_pack(config, 2)
    vocabulary = config.get_text_config().vocab_size
    special = {getattr(config, name, None) for name in ("image_token_id", "video_token_id")}
    plain = torch.tensor([i for i in range(min(vocabulary, 4 * NUM_PROBE_TOKENS)) if i not in special])
    first = plain[:NUM_PROBE_TOKENS]
    other, second = plain[NUM_PROBE_TOKENS : 2 * NUM_PROBE_TOKENS], plain.flip(0)[:NUM_PROBE_TOKENS]
    training, _ = model.training, model.eval()
    alone = _logits(model, [second], device)
    packed = _logits(model, [first, second], device)[len(first) :]
    changed = _logits(model, [other, second], device)[len(other) :]
    model.train(training)
    scale = alone.abs().max().clamp(min=1e-6)
    found = {
        "leak": float((packed - changed).abs().max() / scale),
        "parity": float((packed - alone).abs().max() / scale),
    }
    exact = next(model.parameters()).dtype == torch.float32 and device.type == "cpu"
    limits = {"leak": 1e-6 if exact else 2e-2, "parity": 1e-4 if exact else 5e-2}
    if any(not found[name] <= limit for name, limit in limits.items()):
        raise BuildError(
            "packing",
            found=f"logits of a sample that move by {found['leak']:.1e} with its neighbour and differ by "
            f"{found['parity']:.1e} from the sample alone",
            expected=f"at most {limits['leak']:.0e} and {limits['parity']:.0e} of the largest logit",
            next_step=f"set train.packing to false; attention {config._attn_implementation} does not isolate",
        )
    return found
