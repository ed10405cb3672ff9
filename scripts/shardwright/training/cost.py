"""What a run will cost on each rank, told before it starts."""

from __future__ import annotations

from typing import Any

from torch import nn

MOMENTS = 2  # of AdamW


def active_parameters(model: nn.Module) -> tuple[float, float]:
    """Parameters that one token meets, and how many of those train; an idle expert costs nothing."""
    text = model.config.get_text_config()
    num_experts = getattr(text, "num_experts", None) or 1
    share = min(1.0, (getattr(text, "num_experts_per_tok", None) or 1) / num_experts)
    total = trained = 0.0
    for name, parameter in model.named_parameters():
        met = parameter.numel() * (share if ".experts." in name else 1)
        total += met
        trained += met * parameter.requires_grad
    return total, trained


def flops_per_token(model: nn.Module, recomputed: bool) -> float:
    """Floating point operations of one token's training step, without attention's own.

    Two a parameter forward, two back through it, two more where it trains; two again with activation
    checkpointing.
    """
    total, trained = active_parameters(model)
    return (6 if recomputed else 4) * total + 2 * trained


def cost_lines(model: nn.Module, settings: dict[str, Any], world_size: int) -> list[str]:
    """Lines that tell memory and work before launch.

    Args:
        model: Not yet sharded; it may be empty.
        settings: The config's `train` section.
        world_size: All ranks.
    """
    parts = world_size if settings["parallel"] == "fsdp2" else 1
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / parts
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad) * 4 / parts
    flops = flops_per_token(model, settings["activation_checkpointing"])
    return [
        f"memory of a rank before activations: {_size(weights + (1 + MOMENTS) * trained)}"
        f" (weights {_size(weights)}, gradients {_size(trained)}, optimizer {_size(MOMENTS * trained)})",
        f"work of a token: {flops / 1e9:,.3g} GFLOP",
    ]


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
