"""AdamW with its state made up front, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from shardwright.training.parallel import whole


def learning_rate(step: int, settings: dict[str, Any]) -> float:
    """The learning rate of optimizer step `step` (counted from 0)."""
    peak, warmup = settings["learning_rate"], settings["warmup_steps"]
    if step < warmup:
        return peak * (step + 1) / warmup
    if settings["schedule"] == "constant":
        return peak
    done = (step - warmup) / max(1, settings["steps"] - 1 - warmup)
    low = settings["min_learning_rate_fraction"]
    if settings["schedule"] == "linear":
        return peak * (1 - (1 - low) * min(done, 1.0))
    return peak * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def make_optimizer(model: nn.Module, settings: dict[str, Any]) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; vectors get no weight decay.

    The moments are made here rather than in the first step, so that a checkpoint of any step, 0
    included, has the same tensors.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings["weight_decay"]},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings["learning_rate"],
        betas=(settings["beta1"], settings["beta2"]),
    )
    for parameter in trainable:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Scale all gradients to a global norm of at most `max_norm`; return the norm before (collective)."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    norm = whole(norm)
    if torch.isfinite(norm):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def without_gradient(model: nn.Module) -> list[str]:
    """Names of trainable parameters that the backward pass did not reach."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
