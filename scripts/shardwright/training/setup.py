"""Build a run from its request: ranks, model, trained parts, optimizer, loaders, state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwright.errors import BuildError
from shardwright.training.adapters import (
    ADAPTER_MODES,
    attach_adapters,
    frozen_parts,
    part_of,
    set_trainable,
    trainable_table,
)
from shardwright.training.batching import plan_batches
from shardwright.training.checkpoint import Checkpoints
from shardwright.training.cost import cost_lines
from shardwright.training.loading import fill_shards, is_empty, start_adapters
from shardwright.training.loop import Run
from shardwright.training.metrics import MetricsLog
from shardwright.training.optim import make_optimizer
from shardwright.training.parallel import Ranks, spread
from shardwright.training.stop import StopRequest
from shardwright.vlm.packing import check_isolation


def prepare_model(
    model: nn.Module, settings: dict[str, Any], targets: list[str], parameters: list[str]
) -> nn.Module:
    """Choose what is trained: adapters or unfrozen parts, from the imported or from fresh weights."""
    if settings["mode"] == "pretrain":
        model = _fresh_start(model, settings)
    if settings["activation_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if settings["mode"] in ADAPTER_MODES:
        return attach_adapters(model, settings, targets, parameters)
    set_trainable(model, frozen_parts(settings))
    return model


def _fresh_start(model: nn.Module, settings: dict[str, Any]) -> nn.Module:
    """The same architecture with random weights in the parts that train; frozen parts as imported."""
    torch.manual_seed(settings["seed"])
    device = next(model.parameters()).device
    fresh = type(model)._from_config(model.config, dtype=model.dtype).to(device)
    frozen = frozen_parts(settings)
    kept = {name: p for name, p in model.state_dict().items() if part_of(name) in frozen}
    fresh.load_state_dict(kept, strict=False)
    return fresh


def check_sample_counts(counts: dict[str, int], settings: dict[str, Any]) -> None:
    """Check that each rank and loader worker has something to read, before anything is loaded.

    Args:
        counts: Samples of each split, from the dataset's manifest.
        settings: The config's `train` section.

    Raises:
        BuildError: Fewer train samples than readers, or validation of an empty split.
    """
    num_ranks = settings["nodes"] * settings["ranks_per_node"]
    readers = num_ranks * max(1, settings["loader_workers"])
    if counts.get("train", 0) < readers:
        raise BuildError(
            "the train split",
            found=f"{counts.get('train', 0)} samples",
            expected=f"at least {readers}, one for each of {num_ranks} ranks × "
            f"{max(1, settings['loader_workers'])} loader workers",
            next_step="lower train.ranks_per_node or train.loader_workers, or raise samples.total",
        )
    if settings["validation_every"] and not counts.get("val", 0):
        raise BuildError(
            "the val split",
            found="no samples",
            expected="at least one, since train.validation_every is not 0",
            next_step="raise samples.validation_fraction, or set train.validation_every to 0",
        )


def build_run(
    settings: dict[str, Any], model: nn.Module, feed: Any, ranks: Ranks, folder: Path, stop: StopRequest
) -> Run:
    """Make a run ready to train, resumed from its newest checkpoint where there is one (collective).

    Args:
        settings: The config's `train` section.
        model: The imported model, on this rank's device or empty (see `loading.open_model`).
        feed: The run's loaders and adapter targets (see `sources.Feed`).
        ranks: This process among all.
        folder: The state folder.
        stop: Tells whether to stop.
    """
    plan = plan_batches(settings)
    model = prepare_model(model, settings, feed.sources.targets, feed.sources.target_parameters)
    table = [*trainable_table(model), *cost_lines(model, settings, ranks.world_size)]
    dtype = torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32
    model = spread(model, settings["parallel"], dtype, ranks)
    if is_empty(model):
        fill_shards(model, feed.sources.import_dir, ranks.device)
    if settings["mode"] in ADAPTER_MODES:
        start_adapters(model, settings["seed"])
    if ranks.is_first:
        print(str(plan), *table, sep="\n", flush=True)
    if settings["packing"]:
        check_isolation(model, ranks.device)
    optimizer = make_optimizer(model, settings)
    checkpoints = Checkpoints(folder, ranks, settings["loader_workers"], settings["keep_last"])
    loader = feed.train(ranks.rank, ranks.world_size)
    run = Run(settings, plan, ranks, model, optimizer, loader, feed.validation, checkpoints, None, stop)
    resumed = checkpoints.restore(model, optimizer)
    if resumed:
        run.start_step, state = resumed
        run.counters = state["counters"]
        run.loader.restore_state_rank(state["loader"])
    if ranks.is_first:
        print(f"starting after step {run.start_step}/{settings['steps']}", flush=True)
        board = folder / "tensorboard" if settings["tensorboard"] else None
        # The fingerprint keeps two builds of one W&B project apart.
        name = f"{settings['run']}-{folder.name}"
        run.metrics = MetricsLog(
            folder / "metrics.jsonl", run.start_step, board, settings["wandb_project"], name
        )
    return run
