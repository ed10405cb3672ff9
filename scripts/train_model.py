"""Train the imported model on the indexed dataset; resumes by itself when run again.

One rank of a run: start it through scripts/run_ranks.py, as the rule does. SIGTERM, SIGINT or
SIGUSR1 make it finish its step, save and end with status 75.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import owner_lock
from shardwright.launch import EXIT_STOPPED


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and train; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="energon/manifest.json")
    parser.add_argument("--import-report", type=Path, required=True, help="models/<model>/import.json")
    parser.add_argument("--settings", type=json.loads, required=True, help="the config's train section, JSON")
    parser.add_argument("--limits", type=json.loads, required=True, help="budgets of a sample, JSON")
    parser.add_argument("--targets", default="", help="endings of the linear modules that get an adapter")
    parser.add_argument("--target-parameters", default="", help="endings of fused-expert parameters")
    parser.add_argument("--state", type=Path, required=True, help="folder of the running state, kept")
    parser.add_argument("--checkpoint", type=Path, required=True, help="final checkpoint directory")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics as JSON lines")
    parser.add_argument("--resolved-config", type=Path, required=True, help="what the run was resolved to")
    parser.add_argument("--completed", type=Path, required=True, help="completion record, written last")
    args = parser.parse_args(argv)
    # Launched ranks run under their launcher's lock; one started by hand takes it itself.
    launched = "SHARDWRIGHT_LAUNCHED" in os.environ
    with contextlib.nullcontext() if launched else owner_lock(args.state.with_suffix(".lock")):
        from shardwright.training.loop import Stopped
        from shardwright.training.session import Outputs, run_training
        from shardwright.training.sources import Sources

        targets, parameters = args.targets.split(), args.target_parameters.split()
        sources = Sources(args.manifest, args.import_report, args.limits, targets, parameters)
        outputs = Outputs(args.checkpoint, args.metrics, args.resolved_config, args.completed)
        try:
            run_training(args.settings, sources, args.state, outputs)
        except Stopped as stopped:
            print(stopped, flush=True)
            return EXIT_STOPPED
    return 0


if __name__ == "__main__":
    run_cli(main)
