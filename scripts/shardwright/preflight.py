"""Ask Slurm, before a run, whether it would take each rule's job, and whether it can be watched."""

from __future__ import annotations

import re
import shlex
import subprocess

from shardwright.placement import Place
from shardwright.slurm import ask

# The plugin looks at its jobs at least this often; a job that squeue forgot in between is never seen to end.
LONGEST_ROUND_S = 180


def sbatch_test(place: Place) -> list[str]:
    """The `sbatch --test-only` that asks for what `place` does."""
    extra = [word for word in shlex.split(place.other) if word.startswith("--")]
    return [
        *("sbatch", "--test-only", f"--partition={place.partition}", f"--nodes={place.nodes}"),
        *([f"--gres=gpu:{place.gpus}"] if place.gpus else []),
        *([f"--account={place.account}"] if place.account else []),
        *([f"--mem={place.mem_mb}"] if place.mem_mb else []),
        *([f"--time={place.minutes}"] if place.minutes else []),
        *(f"--cpus-per-task={place.cpus}", *extra, "--wrap=true"),
    ]


def refusals(places: list[Place]) -> dict[str, str]:
    """Return what Slurm refuses: rule → Slurm's words. Nothing is submitted."""
    found = {}
    for place in sorted({place for place in places if not place.local}, key=lambda place: place.rule):
        done = subprocess.run(sbatch_test(place), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            found[place.rule] = done.stderr.strip().replace("\n", "; ") or f"exit status {done.returncode}"
    return found


def site_notes() -> list[str]:
    """Say how jobs can be watched here: how long squeue keeps them, whether there is accounting.

    Raises:
        BuildError: The controller does not answer.
    """
    config = ask("scontrol", "show", "config")
    found = re.search(r"^MinJobAge\s*=\s*(\d+)", config, flags=re.MULTILINE)
    age = int(found.group(1)) if found else 0
    accounting = not re.search(r"^AccountingStorageType\s*=.*none", config, flags=re.MULTILINE)
    notes = [f"MinJobAge {age} s, accounting database: {'yes' if accounting else 'no'}"]
    if age <= LONGEST_ROUND_S:
        advice = (
            "run with --slurm-status-command sacct"
            if accounting
            else "ask the administrator to raise MinJobAge to 300"
        )
        notes.append(f"WARNING: squeue may forget a job before Snakemake sees its end: {advice}")
    return notes
