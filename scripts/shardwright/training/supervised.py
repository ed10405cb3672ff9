"""Which tokens of a batch are learned: each position answers for the token behind it."""

from __future__ import annotations

from typing import Any

from shardwright.vlm.supervision import IGNORED


def targets_of(labels: Any) -> Any:
    """What each position of a batch [rows, tokens] is asked for; the last one is asked for nothing."""
    return labels[:, 1:]


def num_supervised(labels: Any) -> int:
    """Supervised tokens of a batch."""
    return int((targets_of(labels) != IGNORED).sum())


def supervised_positions(labels: Any) -> Any:
    """Positions at which some row of a batch is supervised: elsewhere no logits are needed."""
    return (targets_of(labels) != IGNORED).any(dim=0).nonzero().squeeze(1)
