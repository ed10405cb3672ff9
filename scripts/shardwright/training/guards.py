"""Checks that stop a run before the optimizer takes a bad step."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from torch import nn

from shardwright.errors import BuildError
from shardwright.files import write_json
from shardwright.training.optim import without_gradient
from shardwright.training.parallel import Ranks, unwrapped

MAX_EMPTY_BATCHES = 100
MIN_SAMPLES_FOR_SHARE = 100
MAX_TOLD_UIDS = 8
EVIDENCE = "nonfinite.json"


def nothing_supervised(uids: list[str]) -> BuildError:
    """The error for a loader that yields batch after batch without a supervised token."""
    return BuildError(
        "training batches",
        found=f"{MAX_EMPTY_BATCHES} in a row without a supervised token (the last: {', '.join(uids)})",
        expected="captions to learn from",
        next_step="look at loader_check.json and at the limits of the model section (seq_length)",
    )


def check_drops(num_samples: list[int], drops: list[Counter[str]], max_share: float) -> None:
    """Stop when the loaders of all ranks together dropped too large a share of what they read.

    Raises:
        BuildError: More than `max_share`, from the 100th sample on.
    """
    reasons = sum(drops, Counter())
    dropped = sum(reasons.values())
    read = sum(num_samples) + dropped
    if read >= MIN_SAMPLES_FOR_SHARE and dropped > max_share * read:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
        raise BuildError(
            "training samples",
            found=f"{dropped} of {read} dropped by the loader ({listed})",
            expected=f"at most {100 * max_share:g} % (train.max_drop_share)",
            next_step="look up these reasons in the log, correct the limits, or raise train.max_drop_share",
        )


def check_gradients_exist(model: nn.Module) -> None:
    """Check after a backward pass that it reached every trainable tensor.

    Raises:
        BuildError: Some have no gradient.
    """
    missing = without_gradient(unwrapped(model))
    if missing:
        raise BuildError(
            "the first backward pass",
            found=f"no gradient for {len(missing)} trainable tensors, the first being {missing[0]}",
            expected="a gradient for every trainable tensor",
            next_step="take these modules out of train.adapter_targets, or freeze their part",
        )


def check_finite(
    step: int,
    losses: list[list[float]],
    uids: list[list[list[str]]],
    grad_norm: float,
    folder: Path,
    ranks: Ranks,
) -> None:
    """Stop all ranks before the optimizer step when a loss or the gradient is not finite.

    Args:
        step: Number of the step, from 1.
        losses: By rank, then micro batch.
        uids: The samples of each of those.
        grad_norm: Global norm over all ranks.
        folder: Where the evidence is written.
        ranks: This process among all.

    Raises:
        BuildError: Names the samples of the bad micro batches, or of the whole step where every
            loss is finite and the gradient is not.
    """
    pairs = [pair for rank in zip(losses, uids, strict=True) for pair in zip(*rank, strict=True)]
    bad = [names for loss, names in pairs if not math.isfinite(loss)]
    if not bad and math.isfinite(grad_norm):
        return
    named = sorted(uid for names in (bad or [names for _, names in pairs]) for uid in names)
    shown = ", ".join(named[:MAX_TOLD_UIDS])
    if len(named) > MAX_TOLD_UIDS:
        shown += f" and {len(named) - MAX_TOLD_UIDS} more; all are in {folder / EVIDENCE}"
    what = "loss" if bad else "gradient"
    if ranks.is_first:
        evidence = {"step": step, "what": what, "uids": named, "losses": [repr(loss) for loss, _ in pairs]}
        write_json(folder / EVIDENCE, {**evidence, "grad_norm": repr(grad_norm)})
    raise BuildError(
        f"step {step}",
        found=f"a {what} that is not finite, from the samples {shown}",
        expected="finite numbers; the optimizer did not step and the last checkpoint is intact",
        next_step="look at these samples (samples.exclude leaves some out), lower train.learning_rate, "
        "or train in fp32",
    )
