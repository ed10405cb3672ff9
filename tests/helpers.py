"""Run the real Snakefile from tests, and read what it did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SCRIPTS = CHECKOUT / "scripts"


def child_env(**extra: str) -> dict[str, str]:
    """The environment of a child program: ours, one thread for each library, plus `extra`."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**env, "OMP_NUM_THREADS": "1", **extra}


def snakemake_command(directory: Path, *args: str, checkout: Path = CHECKOUT, cores: int = 2) -> list[str]:
    """The command line that runs the workflow of `checkout` in `directory`."""
    return [
        sys.executable,
        *("-m", "snakemake"),
        *("--snakefile", str(checkout / "Snakefile")),
        *("--directory", str(directory)),
        *("--workflow-profile", str(checkout / "profiles/default")),
        *("--cores", str(cores)),
        *args,
    ]


def snakemake(
    directory: Path, *args: str, check: bool = True, timeout_s: float = 280, **kwargs
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake to its end; stdout and stderr come back together as `.stdout`."""
    done = subprocess.run(
        snakemake_command(directory, *args, **kwargs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=child_env(),
        timeout=timeout_s,
    )
    assert not check or done.returncode == 0, done.stdout[-6000:]
    return done


def run_program(
    name: str, *args: object, check: bool = True, timeout_s: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `scripts/<name>.py` with `args`; stdout and stderr come back together as `.stdout`."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=child_env(**env),
        timeout=timeout_s,
    )
    assert not check or done.returncode == 0, done.stdout[-6000:]
    return done


def jobs_by_rule(output: str) -> Counter[str]:
    """Count the jobs that Snakemake announced, by rule; target rules without a shell count too."""
    return Counter(re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):$", output, flags=re.MULTILINE))


def job_stats(dry_run: str) -> dict[str, int]:
    """Read the first `Job stats` table of a dry run: rule → jobs."""
    table = dry_run.split("Job stats:", 1)[1].split("\ntotal", 1)[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.MULTILINE)}
