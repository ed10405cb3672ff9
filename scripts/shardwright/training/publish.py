"""The end of a run: its checkpoint directory, metrics and completion record, each by rename."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from shardwright.files import fsync_dir, replacing, sha256_file, write_json
from shardwright.training.checkpoint import trained_tensors
from shardwright.training.loop import NOT_MODEL_INPUTS, Run, computing
from shardwright.training.metrics import read_records
from shardwright.training.parallel import unwrapped


@torch.no_grad()
def probe_logits(run: Run, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the trained model says to one fixed batch (collective): its inputs and last-row logits.

    `export_checkpoint` compares the exported model's answer, in a fresh process, with this one.
    """
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    inputs = {key: value for key, value in tensors.items() if key not in NOT_MODEL_INPUTS}
    positions = (tensors["labels"][:, 1:] != -100).any(dim=0).nonzero().squeeze(1)
    run.model.eval()
    sharded = hasattr(run.model, "set_requires_gradient_sync")
    callee = run.model if sharded else unwrapped(run.model)
    moved = {key: value.to(run.ranks.device) for key, value in inputs.items()}
    with computing(run):
        logits = callee(**moved, logits_to_keep=positions.to(run.ranks.device), use_cache=False).logits
    return {**inputs, "logits_to_keep": positions, "logits": logits.float().cpu()}


def publish_checkpoint(run: Run, target: Path, about: dict[str, Any], probe: dict[str, Any]) -> None:
    """Write the run's checkpoint directory (collective).

    Args:
        run: The finished run.
        target: `train/<run>/checkpoint`.
        about: What `checkpoint.json` says of it.
        probe: A batch as the loader gives it.
    """
    ranks = run.ranks
    scratch = target.with_name(f".{target.name}.part")
    if ranks.is_first:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    ranks.gather(None)
    dcp.save(trained_tensors(run.model), storage_writer=dcp.FileSystemWriter(scratch / "tensors"))
    answer = probe_logits(run, probe)
    if ranks.is_first:
        with (scratch / "probe.pt").open("wb") as stream:
            torch.save(answer, stream)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        digests = {str(path.relative_to(scratch)): sha256_file(path) for path in files}
        write_json(scratch / "checkpoint.json", {**about, "sha256": digests})
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
        fsync_dir(target.parent)
    ranks.gather(None)


def copy_metrics(source: Path, target: Path) -> list[dict[str, Any]]:
    """Publish the metrics file; returns its records."""
    with replacing(target) as scratch:
        shutil.copyfile(source, scratch)
    return read_records(target)


def completion(run: Run, records: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """The completion record (collective): what was done, what came out, what was dropped."""
    counters = run.ranks.gather(run.counters)
    drops = sum((counter.drops for counter in counters), Counter())
    steps = [record for record in records if record["kind"] == "train"]
    validations = [record for record in records if record["kind"] == "validation"]
    seconds = sum(record["step_s"] for record in steps)
    return {
        **about,
        "first_loss": steps[0]["loss"],
        "last_loss": steps[-1]["loss"],
        "validation_loss": {str(record["step"]): record["loss"] for record in validations},
        "num_samples": sum(record["num_samples"] for record in steps),
        "num_supervised_tokens": sum(record["num_tokens"] for record in steps),
        "num_dropped": dict(sorted(drops.items())),
        "supervised_tokens_per_s": round(sum(record["num_tokens"] for record in steps) / seconds, 1),
        "data_wait_share": round(sum(record["data_wait_s"] for record in steps) / seconds, 4),
    }


def observed(run: Run, records: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    """What can be seen of the run after it: compare with `asked` of the same shape (collective)."""
    steps = [record for record in records if record["kind"] == "train"]
    samples = {record["num_samples"] for record in steps}
    return {
        **facts,
        "steps": [record["step"] for record in steps] == list(range(1, run.settings["steps"] + 1))
        and len(steps),
        "global_batch_size": samples.pop() if len(samples) == 1 else sorted(samples),
        "num_ranks": len(run.ranks.gather(run.ranks.rank)),
        "validations": [record["step"] for record in records if record["kind"] == "validation"],
    }


def asked(settings: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The same facts as the config asks for them."""
    steps, every = settings["steps"], settings["validation_every"]
    validations = sorted({0, *range(every, steps + 1, every), steps}) if every else []
    return {
        **facts,
        "steps": steps,
        "global_batch_size": settings["global_batch_size"],
        "num_ranks": settings["nodes"] * settings["ranks_per_node"],
        "validations": validations,
    }


def mark_finished(folder: Path, code: str) -> None:
    """Note in the state folder that its run was published, and by which program."""
    (folder / "finished.json").write_text(json.dumps({"code": code}) + "\n")
