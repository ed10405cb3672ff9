"""Validation loss over a fixed number of batches, the same on any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from shardwright.errors import BuildError
from shardwright.training.parallel import Ranks, forwardable
from shardwright.training.supervised import num_supervised


def _rounds(batches: Iterable[dict[str, Any]], size: int) -> Iterable[list[dict[str, Any]]]:
    iterator = iter(batches)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Iterable[dict[str, Any]],
    ranks: Ranks,
    max_batches: int,
    summed_loss: Callable[..., torch.Tensor],
    computing: Any,
) -> dict[str, Any]:
    """Return loss, num_tokens and num_samples over the first `max_batches` of `batches` (collective).

    Every rank reads the same stream and computes every `world_size`-th batch of it, so that the
    result does not depend on the ranks. In an incomplete last round the idle ranks compute the
    round's first batch with weight 0: FSDP2's forward pass needs every rank to take part.

    Raises:
        BuildError: The stream is empty.
    """
    model.eval()
    callee = forwardable(model)
    loss = torch.zeros((), dtype=torch.float64)
    num_tokens = num_samples = 0
    for chunk in _rounds(itertools.islice(batches, max_batches), ranks.world_size):
        busy = ranks.rank < len(chunk)
        batch = chunk[ranks.rank if busy else 0]
        with computing:
            value = summed_loss(callee, batch, ranks.device)
        if busy:
            loss += value.double().cpu()
            num_tokens += num_supervised(batch["labels"])
            num_samples += len(batch["uids"])
    sums = ranks.gather((float(loss), num_tokens, num_samples))
    total_loss, total_tokens, total_samples = (sum(column) for column in zip(*sums, strict=True))
    if not total_tokens:
        raise BuildError(
            "the val split",
            found="no sample with a supervised token",
            expected="at least one",
            next_step="raise samples.validation_fraction, or set train.validation_every to 0",
        )
    return {"loss": total_loss / total_tokens, "num_tokens": total_tokens, "num_samples": total_samples}
