"""The tools around a run: the cluster's own command, the preflight, few jobs for many shards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slurm.cluster import SlurmCluster, missing_programs
from slurm.conftest import CHECKOUT, SLURM_PYTHON

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def run_on(
    cluster: SlurmCluster, folder: Path, *command: object, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` with the cluster's Slurm first on PATH."""
    clean = {key: value for key, value in cluster.env().items() if not key.startswith("SHARDWRIGHT_")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_cluster_starts_and_ends_by_hand(tmp_path: Path) -> None:
    """`make slurm-up` and `slurm-down`: seconds, a private folder, no process left."""
    if missing_programs():
        pytest.skip("Slurm is not installed: apt-get install slurm-wlm munge")
    folder = Path(f"/tmp/sw{os.getpid()}")

    def command(action: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(CHECKOUT / "tests/slurm/cluster.py"), action, "--folder", str(folder)]
        return subprocess.run(
            words, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}
        )

    started = command("up")
    try:
        assert f"export SLURM_CONF={folder}/slurm.conf" in started.stdout, started
        assert command("status").stdout.count("idle") == 3
        assert set(SlurmCluster(folder).pids()) == {
            *("munged", "slurmctld"),
            *("slurmd-cpu1", "slurmd-gpu1", "slurmd-gpu2"),
        }
    finally:
        assert command("down").returncode == 0
    assert not folder.exists() and command("status").returncode == 1
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in path.read_text()]
    assert left == []


def test_job_with_seven_gpus_is_refused_at_its_start(cluster: SlurmCluster, tmp_path: Path) -> None:
    """R53: an allocation of seven devices ends the job before the program that loads weights starts."""
    (tmp_path / "program.py").write_text("open('started', 'w')")
    ranks = [
        SLURM_PYTHON,
        CHECKOUT / "scripts/run_ranks.py",
        "--expect-gpus",
        8,
        "--",
        tmp_path / "program.py",
    ]
    for gpus, status in ((7, 1), (8, 0)):
        done = run_on(cluster, tmp_path, "srun", "--partition=gpu", "--nodes=1", f"--gpus={gpus}", *ranks)
        assert done.returncode == status, done
        assert (tmp_path / "started").exists() == (status == 0)
        assert ("found 7 visible GPUs" in done.stderr) == (status == 1)


SAVES_WHEN_ASKED = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(1), open("saved", "w").close(), sys.exit(75)))
time.sleep(200)
"""


def test_ranks_are_asked_to_save_before_the_time_limit(cluster: SlurmCluster, tmp_path: Path) -> None:
    """R46: Slurm kills a job KillWait (here 2 s) after its limit; the ranks have saved and ended before."""
    (tmp_path / "program.py").write_text(SAVES_WHEN_ASKED)
    ranks = f"{SLURM_PYTHON} {CHECKOUT}/scripts/run_ranks.py --grace-s 60 -- program.py"
    done = run_on(cluster, tmp_path, "sbatch", "--wait", "--time=1", "--output=job.log", f"--wrap={ranks}")
    text = (tmp_path / "job.log").read_text()
    assert done.returncode == 75 and (tmp_path / "saved").exists(), (done, text)
    assert "the time limit is near: asking every rank to save and stop" in text


def test_what_a_job_has_left_is_read_in_all_of_slurms_ways(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Days, hours and minutes; no limit and no job are no number."""
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT / 'scripts')!r})\n"
        "from shardwright.slurm import seconds_left\nprint(seconds_left())"
    )

    def left(**env: str) -> str:
        return run_on(cluster, tmp_path, SLURM_PYTHON, "-c", program, **env).stdout.strip()

    assert left() == "None"
    for limit, seconds in (("1-02:00:00", 93600), ("3:00:00", 10800), ("7:00", 420), ("UNLIMITED", None)):
        submit = ("sbatch", "--parsable", "--hold", "--output=/dev/null", f"--time={limit}", "--wrap=true")
        job = cluster.run(*submit).splitlines()[-1]
        found = left(SLURM_JOB_ID=job)
        cluster.run("scancel", job)
        assert found == (f"{seconds:.1f}" if seconds else "None"), limit


def test_preflight_says_what_slurm_would_refuse(cluster: SlurmCluster, tmp_path: Path) -> None:
    """R54, R55, R59: each rule's job is shown to sbatch --test-only; nothing is submitted."""
    options = ["--snakefile", CHECKOUT / "Snakefile", "--directory", tmp_path, "model"]
    options += ["--workflow-profile", CHECKOUT / "profiles/slurm"]
    check = [SLURM_PYTHON, CHECKOUT / "scripts/placement.py", "--check", *options]
    fine = run_on(cluster, tmp_path, *check)
    assert fine.returncode == 0 and "Slurm would take every rule's job." in fine.stdout, fine
    assert "MinJobAge 600 s, accounting database: no" in fine.stdout
    refused = run_on(cluster, tmp_path, *check, SHARDWRIGHT_GPU_PARTITION="elsewhere")
    assert refused.returncode == 1 and "REFUSED import_model" in refused.stdout, refused
    assert "invalid partition" in refused.stdout and "REFUSED fetch_model" not in refused.stdout
    assert cluster.run("squeue", "--noheader") == ""


def test_many_shards_in_two_jobs(cluster: SlurmCluster, tmp_path: Path) -> None:
    """R51, R57: one sbatch call builds and audits every shard; none is left to submit one by one."""
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump({"download": {"rows_per_shard": 200}}))
    before = cluster.calls()
    shards = [SLURM_PYTHON, CHECKOUT / "scripts/slurm_shards.py", "--jobs", 2, "--", "--configfile", config]
    done = run_on(cluster, tmp_path, *shards)
    assert done.returncode == 0, (done, [path.read_text() for path in tmp_path.glob("logs/slurm/*")])
    after = cluster.calls()
    assert after["sbatch"] - before["sbatch"] == 1 and after["srun"] == before["srun"]
    root = tmp_path / "results/example"
    audits = sorted(path.name for path in root.glob("audit/????????.json"))
    assert audits == ["00000000.json", "00000001.json"]
    assert len(list(tmp_path.glob("logs/slurm/shards-*_?.log"))) == 2
    planned = run_on(
        *(cluster, tmp_path, SLURM_PYTHON, "-m", "snakemake", "audit", "--dry-run"),
        *("--snakefile", CHECKOUT / "Snakefile", "--configfile", config),
        *("--workflow-profile", CHECKOUT / "profiles/slurm"),
    )
    assert "audit_summary" in planned.stdout and "download_shard" not in planned.stdout, planned
