"""One training session: from the files a run reads to the files it publishes."""

from __future__ import annotations

import itertools
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardwright.code_digest import code_digest
from shardwright.files import sha256_file, write_json
from shardwright.training import publish
from shardwright.training.config import Request, check_observed, open_state, write_resolved
from shardwright.training.loop import Run, train
from shardwright.training.parallel import Ranks, make_deterministic, start_ranks
from shardwright.training.setup import build_run, check_sample_counts, storage_dtype
from shardwright.training.stop import StopRequest

SCRIPTS = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "peft", "megatron-energon")


@dataclass(frozen=True)
class Sources:
    """What a run reads."""

    manifest: Path
    loader_check: Path
    import_report: Path
    model_settings: dict[str, Any]

    @property
    def dataset(self) -> Path:
        """The Energon dataset folder."""
        return self.manifest.parent

    @property
    def import_dir(self) -> Path:
        """The imported weights and processor."""
        return self.import_report.parent / "import"


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
    stop = StopRequest(settings["sigterm_grace_s"])
    manifest = json.loads(sources.manifest.read_text())
    check_sample_counts(manifest["splits"], settings)
    ranks = start_ranks(settings["accelerator"], settings["nodes"] * settings["ranks_per_node"])
    make_deterministic(settings["seed"], ranks.device, settings["deterministic"])
    request = Request(settings, _inputs(sources))
    code = code_digest(SCRIPTS, "train_model")
    if ranks.is_first:
        open_state(state, request, code)
    ranks.gather(None)
    folder = state / request.fingerprint
    run = _assemble(settings, sources, ranks, folder, stop)
    train(run)
    _publish(run, request, sources, outputs, folder)
    if ranks.is_first:
        publish.mark_finished(folder, code)
        print(f"trained: {outputs.checkpoint}", flush=True)
