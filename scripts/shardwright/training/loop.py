"""The training loop: fetch, forward, backward, check, step, record, validate, save."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from shardwright.training import guards
from shardwright.training.batching import BatchPlan
from shardwright.training.checkpoint import Checkpoints
from shardwright.training.metrics import MetricsLog, Progress
from shardwright.training.optim import clip_gradients, learning_rate
from shardwright.training.parallel import Ranks, gradients_summed, seed_step
from shardwright.training.stop import StopRequest, shielded
from shardwright.training.supervised import num_supervised, supervised_positions, targets_of
from shardwright.training.validation import validate
from shardwright.vlm.supervision import IGNORED

NOT_MODEL_INPUTS = ("labels", "num_supervised")


class Stopped(Exception):
    """The run was asked to stop and has saved its state."""


@dataclass
class Counters:
    """What this rank has used, and passed over, so far; saved with its loader's state."""

    num_samples: int = 0
    drops: Counter[str] = field(default_factory=Counter)


@dataclass
class Run:
    """All that the loop needs, built by `setup.build_run`."""

    settings: dict[str, Any]
    plan: BatchPlan
    ranks: Ranks
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    open_validation: Callable[[], Iterable[dict[str, Any]]]
    checkpoints: Checkpoints
    metrics: MetricsLog | None
    stop: StopRequest
    start_step: int = 0
    counters: Counters = field(default_factory=Counters)

    @property
    def drops(self) -> Counter[str]:
        """Samples that this rank lost so far, in its loader or here, by reason."""
        return self.loader.drops + self.counters.drops

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the computation."""
        return torch.bfloat16 if self.settings["dtype"] == "bf16" else torch.float32


def computing(run: Run) -> contextlib.AbstractContextManager:
    """bf16 under DDP computes through autocast; FSDP2 has its own mixed precision."""
    if run.dtype == torch.float32 or run.settings["parallel"] == "fsdp2":
        return contextlib.nullcontext()
    return torch.autocast(run.ranks.device.type, run.dtype)


def summed_loss(model: nn.Module, batch: dict[str, Any], device: torch.device) -> torch.Tensor:
    """Cross entropy summed over a batch's supervised tokens.

    Logits are made only at positions that some row supervises: prompt, image and padding positions
    never meet the vocabulary.
    """
    tensors = {key: value.to(device) for key, value in batch.items() if isinstance(value, torch.Tensor)}
    positions = supervised_positions(tensors["labels"])
    inputs = {key: value for key, value in tensors.items() if key not in NOT_MODEL_INPUTS}
    logits = model(**inputs, logits_to_keep=positions, use_cache=False).logits
    return cross_entropy(
        logits.float().flatten(0, 1),
        targets_of(tensors["labels"])[:, positions].flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def next_micro_batches(batches: Iterator[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Fetch one step's micro batches of this rank; one without supervised tokens is passed over."""
    fetched: list[dict[str, Any]] = []
    passed_over = 0
    while len(fetched) < run.plan.accumulation:
        batch = next(batches)
        if num_supervised(batch["labels"]):
            run.counters.num_samples += len(batch["uids"])
            fetched.append(batch)
            passed_over = 0
            continue
        run.counters.drops["no_supervised_token"] += len(batch["uids"])
        passed_over += 1
        if passed_over == guards.MAX_EMPTY_BATCHES:
            raise guards.nothing_supervised(batch["uids"])
    return fetched


def forward_backward(run: Run, micro_batches: list[dict[str, Any]], num_tokens: int) -> list[float]:
    """Accumulate the gradient of the mean loss over `num_tokens`, the supervised tokens of all ranks.

    Returns:
        The summed loss of each micro batch of this rank.
    """
    # DDP and FSDP2 average over ranks; the loss is a mean over all ranks' tokens.
    scale = run.ranks.world_size / num_tokens
    losses = []
    for index, batch in enumerate(micro_batches):
        with gradients_summed(run.model, last=index == len(micro_batches) - 1):
            with computing(run):
                loss = summed_loss(run.model, batch, run.ranks.device)
            (loss * scale).backward()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def train_step(run: Run, step: int, micro_batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Do optimizer step number `step` (from 0) and return its metrics.

    Raises:
        BuildError: A loss or gradient that is not finite, a trainable tensor without gradient, too
            many dropped samples; in each case before the optimizer step.
    """
    ranks, settings = run.ranks, run.settings
    seed_step(settings["seed"], step, ranks.rank)
    uids = [list(batch["uids"]) for batch in micro_batches]
    num_tokens = sum(num_supervised(batch["labels"]) for batch in micro_batches)
    facts = ranks.gather((num_tokens, uids, run.counters.num_samples, run.drops))
    guards.check_drops([fact[2] for fact in facts], [fact[3] for fact in facts], settings["max_drop_share"])
    total_tokens = sum(fact[0] for fact in facts)

    losses = forward_backward(run, micro_batches, total_tokens)
    if step == run.start_step:
        guards.check_gradients_exist(run.model)
    grad_norm = clip_gradients(run.model, settings["grad_clip_norm"])
    all_losses = ranks.gather(losses)
    guards.check_finite(
        step + 1, all_losses, [fact[1] for fact in facts], grad_norm, run.checkpoints.folder, ranks
    )

    rate = learning_rate(step, settings)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    seen = [uid for fact in facts for batch in fact[1] for uid in batch]
    return {
        "loss": sum(map(sum, all_losses)) / total_tokens,
        "learning_rate": rate,
        "grad_norm": grad_norm,
        "num_tokens": total_tokens,
        "num_samples": len(seen),
        "num_dropped": sum(sum(fact[3].values()) for fact in facts),
        "uids_sha256": hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16],
    }


def train(run: Run) -> None:
    """Train from `run.start_step` to the last step.

    Raises:
        Stopped: A signal asked for it; the state is saved.
        BuildError: See `train_step`; the last checkpoint is intact.
    """
    settings, steps = run.settings, run.settings["steps"]
    progress = Progress(steps, run.start_step, settings["log_every"])
    run.model.train()
    stop_if_asked(run, run.start_step)
    if settings["validation_every"] and run.start_step == 0:
        record_validation(run, 0)
    batches = iter(run.loader) if run.start_step < steps else iter(())
    for step in range(run.start_step, steps):
        began = time.monotonic()
        # The first fetch forks the loader's workers.
        with shielded() if step == run.start_step else contextlib.nullcontext():
            micro_batches = next_micro_batches(batches, run)
        waited = time.monotonic() - began
        values = train_step(run, step, micro_batches)
        values |= {"data_wait_s": round(waited, 6), "step_s": round(time.monotonic() - began, 6)}
        done = step + 1
        if run.metrics:
            run.metrics.record("train", done, values)
            progress.show(done, values)
        if settings["validation_every"] and (done % settings["validation_every"] == 0 or done == steps):
            record_validation(run, done)
        if done % settings["checkpoint_every"] == 0 or done == steps:
            save(run, done)
        if done < steps:
            stop_if_asked(run, done)
    if settings["validation_every"]:
        record_validation(run, steps)  # a finished run that was not validated before


def save(run: Run, step: int) -> None:
    """Publish a checkpoint after `step` steps (collective)."""
    state = {"loader": run.loader.save_state_rank(), "counters": run.counters}
    run.checkpoints.save(step, run.model, run.optimizer, state)


def stop_if_asked(run: Run, step: int) -> None:
    """Save and raise `Stopped` if any rank was asked to stop (collective)."""
    asked = [name for name in run.ranks.gather(run.stop.signal) if name]
    if asked:
        save(run, step)
        raise Stopped(
            f"stopped by {asked[0]} after step {step}/{run.settings['steps']}; the state is saved: "
            "run the same command again to resume"
        )


def record_validation(run: Run, step: int) -> None:
    """Validate and record it, unless this step's validation is on record already (collective)."""
    on_record = run.ranks.gather(bool(run.metrics and run.metrics.has("validation", step)))[0]
    if on_record:
        return
    values = validate(
        run.model,
        run.open_validation(),
        run.ranks,
        run.settings["validation_batches"],
        summed_loss,
        computing(run),
    )
    run.model.train()
    if run.metrics:
        run.metrics.record("validation", step, values)
        print(
            f"validation after step {step}: loss {values['loss']:.4f} over {values['num_samples']} samples",
            flush=True,
        )
