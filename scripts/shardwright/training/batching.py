"""Batch arithmetic, checked before anything heavy. Standard library only (the Snakefile uses it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.errors import BuildError

# Settings that may change between two starts of one run: they alter no weight. The topology is
# among them because the checkpoint itself refuses another one, with a better message.
FREE_KEYS = frozenset(
    {
        *("run", "nodes", "ranks_per_node", "loader_workers", "data_micro_batch_size"),
        *("log_every", "validation_every", "validation_batches", "checkpoint_every", "keep_last"),
        *("max_drop_share", "sigterm_grace_s", "tensorboard", "wandb_project", "learning_facts"),
    }
)


def deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the config's `train` section that decide the weights."""
    return {key: value for key, value in settings.items() if key not in FREE_KEYS}


@dataclass(frozen=True)
class BatchPlan:
    """How one optimizer step is cut: `global_size = micro_size × world_size × accumulation`."""

    micro_size: int
    world_size: int
    accumulation: int
    global_size: int

    def __str__(self) -> str:
        return (
            f"global batch {self.global_size} = micro batch {self.micro_size} × {self.world_size} ranks "
            f"× {self.accumulation} accumulation steps"
        )


def plan_batches(settings: dict[str, Any]) -> BatchPlan:
    """Work out the accumulation steps of a run.

    Args:
        settings: The config's `train` section.

    Raises:
        BuildError: The loader's batch is not the micro batch, the global batch is not a multiple of
            what all ranks hold at once, or packing has nothing to pack.
    """
    micro, data = settings["micro_batch_size"], settings["data_micro_batch_size"]
    world_size = settings["nodes"] * settings["ranks_per_node"]
    if data is not None and data != micro:
        raise BuildError(
            "config train.data_micro_batch_size",
            found=f"{data} beside train.micro_batch_size {micro}",
            expected="the same number",
            next_step="leave data_micro_batch_size out, or set both to the same number",
        )
    if settings["packing"] and micro == 1:
        raise BuildError(
            "config train.packing",
            found="true with train.micro_batch_size 1",
            expected="a micro batch of at least 2 samples to pack into one row",
            next_step="raise train.micro_batch_size, or set train.packing to false",
        )
    at_once = micro * world_size
    accumulation, rest = divmod(settings["global_batch_size"], at_once)
    if rest or not accumulation:
        lower = max(accumulation, 1) * at_once
        raise BuildError(
            "config train.global_batch_size",
            found=f"{settings['global_batch_size']} with micro batch {micro} on {world_size} ranks",
            expected=f"a multiple of {at_once}",
            next_step=f"set it to {lower} or {lower + at_once}, or change the micro batch or the ranks",
        )
    return BatchPlan(micro, world_size, accumulation, settings["global_batch_size"])
