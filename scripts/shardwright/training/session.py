"""One training session: from the files a run reads to the files it publishes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardwright.code_digest import code_digest
from shardwright.files import write_json
from shardwright.training import publish
from shardwright.training.config import Request, open_state, write_resolved
from shardwright.training.loading import open_model
from shardwright.training.loop import Run, train
from shardwright.training.metrics import read_records
from shardwright.training.parallel import make_deterministic, start_ranks
from shardwright.training.setup import build_run, check_sample_counts
from shardwright.training.sources import Feed, Sources
from shardwright.training.stop import StopRequest, end_children
from shardwright.vlm.models import load_processor

SCRIPTS = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "peft", "megatron-energon")


@dataclass(frozen=True)
class Outputs:
    """What a run publishes when it is finished."""

    checkpoint: Path
    metrics: Path
    resolved_config: Path
    completed: Path


def run_training(settings: dict[str, Any], sources: Sources, state: Path, outputs: Outputs) -> None:
    """Train to the last step, resuming where a state is found, and publish (collective).

    Raises:
        Stopped: A signal asked for it; the state is saved.
        BuildError: A fault in config, data or numbers; the last checkpoint is intact.
    """
    stop = StopRequest()
    check_sample_counts(sources.split_counts(), settings)
    ranks = start_ranks(settings["accelerator"], settings["nodes"] * settings["ranks_per_node"])
    make_deterministic(settings["seed"], ranks.device, settings["deterministic"])
    request = Request(settings, sources.identity())
    code = code_digest(SCRIPTS, "train_model")
    if ranks.is_first:
        open_state(state, request, code)
    ranks.gather(None)
    folder = state / request.fingerprint
    model = open_model(settings, sources.import_dir, ranks)
    feed = Feed(sources, load_processor(sources.import_dir), settings)
    run = build_run(settings, model, feed, ranks, folder, stop)
    try:
        train(run)
    finally:
        # In this order: torch takes a worker killed before it is told of the end for a crash.
        run.loader.close()
        end_children()
        if run.metrics:
            run.metrics.close()
    _publish(run, request, feed, outputs, folder)
    if ranks.is_first:
        publish.mark_finished(folder, code)
        print(f"trained: {outputs.checkpoint}", flush=True)


def _publish(run: Run, request: Request, feed: Feed, outputs: Outputs, folder: Path) -> None:
    sources, ranks = feed.sources, run.ranks
    about = {
        "settings": run.settings,
        "inputs": request.inputs,
        "fingerprint": request.fingerprint,
        "model": sources.model_facts(),
    }
    publish.publish_checkpoint(run, outputs.checkpoint, about, feed.probe())
    told = ranks.gather((run.drops, run.loader.adjusted, run.loader.reader))
    if not ranks.is_first:
        return
    records = read_records(folder / "metrics.jsonl")
    observed = {"inputs": sources.identity(), "readers": [reader for _, _, reader in told]}
    asked = {**run.settings, "inputs": request.inputs, "readers": _readers(run)}
    publish.check_run(asked, observed, records)
    publish.copy_file(folder / "metrics.jsonl", outputs.metrics)
    packages = {name: version(name) for name in PACKAGES}
    write_resolved(outputs.resolved_config, {**about, "batches": str(run.plan), "packages": packages})
    drops, adjusted = (sum((fact[place] for fact in told), Counter()) for place in (0, 1))
    write_json(outputs.completed, publish.completion(drops, adjusted, records, about))


def _readers(run: Run) -> list[dict[str, Any]]:
    """What each rank's loader should have been, by the settings."""
    about = {
        "split": "train",
        "repeat": True,
        "micro_batch_size": run.plan.micro_size,
        "world_size": run.plan.world_size,
        "num_workers": run.settings["loader_workers"],
        "seed": run.settings["seed"],
    }
    return [{**about, "rank": rank} for rank in range(run.plan.world_size)]
