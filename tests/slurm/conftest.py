"""One test cluster a pytest worker, and Snakemake pointed at it with the real profile."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.cluster import SlurmCluster, missing_programs, temporary_cluster

CHECKOUT = Path(__file__).resolve().parents[2]
SLURM_PYTHON = CHECKOUT / ".venv-slurm/bin/python"


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """A running cluster: cpu1, gpu1, gpu2."""
    if missing_programs():
        pytest.skip(
            f"Slurm is not installed ({' '.join(missing_programs())}): apt-get install slurm-wlm munge"
        )
    if not SLURM_PYTHON.exists():
        pytest.skip("no .venv-slurm with the executor plugin: make slurm-env")
    with temporary_cluster() as running:
        yield running


def snakemake_command(directory: Path, *args: str, snakefile: Path | None = None) -> list[str]:
    """The command that runs a workflow (ours unless told) in `directory` through profiles/slurm."""
    return [
        *(str(SLURM_PYTHON), str(CHECKOUT / "tests/slurm/snakemake")),
        *("--snakefile", str(snakefile or CHECKOUT / "Snakefile")),
        *("--directory", str(directory)),
        *("--workflow-profile", str(CHECKOUT / "profiles/slurm")),
        *("--latency-wait", "20"),
        *args,
    ]


def start_snakemake(
    cluster: SlurmCluster, directory: Path, *args: str, snakefile: Path | None = None, **env: str
) -> subprocess.Popen[bytes]:
    """Start Snakemake on the cluster, from a folder that is not its own."""
    inherited = {key: None for key in os.environ if key.startswith(("PYTEST_", "SHARDWRIGHT_"))}
    clean = {key: value for key, value in cluster.env(**env).items() if key not in inherited or key in env}
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".out", delete=False) as output:
        process = subprocess.Popen(
            snakemake_command(directory, *args, snakefile=snakefile),
            cwd="/",
            env={**clean, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    process.output = Path(output.name)
    return process


def finish(process: subprocess.Popen[bytes], timeout_s: float = 400) -> str:
    """Wait for a started Snakemake; return what it printed."""
    try:
        process.wait(timeout=timeout_s)
    finally:
        process.kill()
    return process.output.read_text()
