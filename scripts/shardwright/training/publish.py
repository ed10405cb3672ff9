"""The end of a run: its checkpoint directory, metrics and completion record, each by rename."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from shardwright.files import publish_folder, replacing, sha256_file, write_json
from shardwright.training.checkpoint import trained_tensors
from shardwright.training.config import check_observed
from shardwright.training.loop import NOT_MODEL_INPUTS, Run, computing
from shardwright.training.parallel import forwardable
from shardwright.training.supervised import supervised_positions


@torch.no_grad()
def probe_logits(run: Run, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the trained model says to one fixed batch (collective): its inputs and last-row logits.

    `export_checkpoint` compares the exported model's answer, in a fresh process, with this one.
    """
    tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
    inputs = {key: value for key, value in tensors.items() if key not in NOT_MODEL_INPUTS}
    positions = supervised_positions(tensors["labels"])
    callee = forwardable(run.model.eval())
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
    writer = dcp.FileSystemWriter(scratch / "tensors", sync_files=True)
    dcp.save(trained_tensors(run.model), storage_writer=writer)
    answer = probe_logits(run, probe)
    if ranks.is_first:
        with (scratch / "probe.pt").open("wb") as stream:
            torch.save(answer, stream)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        digests = {str(path.relative_to(scratch)): sha256_file(path) for path in files}
        write_json(scratch / "checkpoint.json", {**about, "sha256": digests})
        publish_folder(scratch, target)
    ranks.gather(None)


def copy_file(source: Path, target: Path) -> None:
    """Publish a copy of a file, by rename."""
    with replacing(target) as scratch:
        shutil.copyfile(source, scratch)


def completion(
    drops: Counter[str], adjusted: Counter[str], records: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """The completion record: what was done, what came out, what was dropped and changed.

    Args:
        drops: Samples that all ranks lost, by reason.
        adjusted: Samples that all ranks changed, by rule.
        records: The run's metrics.
        about: What `checkpoint.json` says too.
    """
    steps = [record for record in records if record["kind"] == "train"]
    validations = [record for record in records if record["kind"] == "validation"]
    seconds = sum(record["step_s"] for record in steps)
    num_tokens = sum(record["num_tokens"] for record in steps)
    return {
        **about,
        "first_loss": steps[0]["loss"],
        "last_loss": steps[-1]["loss"],
        "validation_loss": {str(record["step"]): record["loss"] for record in validations},
        "num_samples": sum(record["num_samples"] for record in steps),
        "num_supervised_tokens": num_tokens,
        "num_dropped": dict(sorted(drops.items())),
        "num_adjusted": dict(sorted(adjusted.items())),
        "supervised_tokens_per_s": round(num_tokens / seconds, 1),
        "data_wait_share": round(sum(record["data_wait_s"] for record in steps) / seconds, 4),
    }


def check_run(asked: dict[str, Any], observed: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Check from its records that the run did what its settings say.

    Args:
        asked: The settings, and under `inputs` what was to be read.
        observed: The same keys as far as the finished process can see them.
        records: The run's metrics.

    Raises:
        BuildError: Any difference; all are told.
    """
    steps = asked["steps"]
    trained = [record for record in records if record["kind"] == "train"]
    # A resumed run may have been asked for another cadence before; the last step has one in any.
    validated = [record["step"] for record in records if record["kind"] == "validation"]
    seen = {
        "steps": [record["step"] for record in trained],
        "global_batch_size": sorted({record["num_samples"] for record in trained}),
        "last_validation": max(validated, default=None) if asked["validation_every"] else None,
        **observed,
    }
    wanted = {
        "steps": list(range(1, steps + 1)),
        "global_batch_size": [asked["global_batch_size"]],
        "last_validation": steps if asked["validation_every"] else None,
        **{key: asked[key] for key in observed},
    }
    check_observed(wanted, seen)


def mark_finished(folder: Path, code: str) -> None:
    """Note in the state folder that its run was published, and by which program."""
    write_json(folder / "finished.json", {"code": code})
