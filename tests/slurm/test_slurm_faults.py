"""What goes wrong on a cluster: cancelled jobs, lost nodes, refusals, a killed Snakemake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.conftest import CHECKOUT, finish, start_snakemake

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

WRITER = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
from shardwright.files import owner_lock, replacing

target, events = Path(sys.argv[1]), Path("events.jsonl")
with owner_lock(Path("locks") / target.name):
    seconds = 0.5 if events.exists() else float(sys.argv[2])
    with events.open("a") as stream:
        print(json.dumps(["begin", os.environ["SLURM_JOB_ID"], time.time()]), file=stream)
    time.sleep(seconds)
    with replacing(target) as scratch:
        scratch.write_text(os.environ["SLURM_JOB_ID"])
    with events.open("a") as stream:
        print(json.dumps(["end", os.environ["SLURM_JOB_ID"], time.time()]), file=stream)
"""


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 200) -> object:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} in {timeout_s:.0f} s"
        time.sleep(0.3)
    return value


def jobs_of(cluster, rule: str, state: str = "RUNNING") -> list[str]:
    """Return the ids of the queue's jobs of one rule."""
    lines = cluster.run("squeue", "--noheader", "--format=%i %T %k").splitlines()
    fields = [line.split(maxsplit=2) for line in lines]
    return [job for job, found, comment in fields if found == state and comment.startswith(f"rule_{rule}")]


def job_field(cluster, job: str, name: str) -> str:
    """Return one field of `scontrol show job`."""
    return re.search(rf"\b{name}=(\S*)", cluster.run("scontrol", "show", "job", job)).group(1)


def test_cancelled_lost_and_refused_jobs(cluster, tmp_path: Path) -> None:
    """R48, R54, R55, R56, R58, S14: each lost job is retried once and elsewhere, a refusal names its reason,
    nothing hangs or stays behind; from any folder, without accounting, with a chatty submit filter."""
    (tmp_path / "Snakefile").write_text(
        """
rule all:
    input: "cancelled.txt", "lost_node.txt", "refused.txt", "late.txt"
rule late:
    output: "late.txt"
    shell: "(sleep 5; touch {output}) >/dev/null 2>&1 &"
rule cancelled:
    output: "cancelled.txt"
    shell: "test -e cancelled.begun || {{ touch cancelled.begun; sleep 300; }}; hostname > {output}"
rule lost_node:
    output: "lost_node.txt"
    resources: slurm_partition="gpu", gpu=8, nodes=1
    shell: "test -e lost.begun || {{ touch lost.begun; sleep 300; }}; echo $SLURM_JOB_ID > {output}"
rule refused:
    output: "refused.txt"
    resources: mem_mb=99000000
    shell: "touch {output}"
"""
    )
    assert subprocess.run(["sacct"], env=cluster.env(), capture_output=True).returncode != 0
    chatty = tmp_path / "bin/sbatch"
    chatty.parent.mkdir()
    chatty.write_text(
        f'#!/bin/sh\necho "Welcome. You use 80 % of your quota."\n{cluster.folder}/bin/sbatch "$@"\n'
    )
    chatty.chmod(0o755)
    path = f"{chatty.parent}:{cluster.env()['PATH']}"
    run = start_snakemake(cluster, tmp_path, "all", snakefile=tmp_path / "Snakefile", PATH=path)
    wait_for((tmp_path / "cancelled.begun").exists, "first attempt")
    (cancelled,) = jobs_of(cluster, "cancelled")
    cluster.run("scancel", cancelled)
    wait_for((tmp_path / "lost.begun").exists, "first attempt")
    (lost,) = jobs_of(cluster, "lost_node")
    node = job_field(cluster, lost, "NodeList")
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    text = finish(run)
    cluster.run(
        "scontrol", "update", f"NodeName={node}", "State=RESUME", check=False
    )  # it may be back by itself
    assert run.returncode == 1, text
    assert (tmp_path / "late.txt").exists(), "a file that shows up late, as on NFS, was not waited for"
    assert (tmp_path / "cancelled.txt").exists() and not (tmp_path / "refused.txt").exists()
    retried = (tmp_path / "lost_node.txt").read_text().strip()
    assert job_field(cluster, lost, "JobState") == "NODE_FAIL"
    assert job_field(cluster, lost, "Requeue") == "0"
    assert job_field(cluster, retried, "NodeList") not in ("", node)
    assert "sbatch failed" in text and "Memory specification can not be satisfied" in text
    assert cluster.run("squeue", "--noheader") == ""
    assert (tmp_path / f"logs/slurm/rule_cancelled/{cancelled}.log").exists()


def begin_and_end(folder: Path) -> list[list]:
    """Return the writers' events in order."""
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_killed_snakemake_leaves_no_second_writer_and_no_orphan(cluster, tmp_path: Path) -> None:
    """R49, R56: `unlock` sees the live run and the jobs it left; a forced copy waits for the orphan;
    slurm_jobs.py cancels what is left."""
    (tmp_path / "writer.py").write_text(WRITER.format(scripts=str(CHECKOUT / "scripts")))
    (tmp_path / "Snakefile").write_text(
        f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(CHECKOUT / "scripts")!r})
from shardwright.runs import record_run
onstart:
    record_run(Path(), workflow.executor_plugin.name)
rule target:
    output: "target.txt"
    shell: "{sys.executable} writer.py {{output}} 25"
rule other:
    output: "other.txt"
    shell: "sleep 300"
rule all:
    input: "target.txt", "other.txt"
"""
    )

    def program(name: str, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CHECKOUT / f"scripts/{name}.py"), "--directory", str(tmp_path), *args]
        return subprocess.run(command, env=cluster.env(), capture_output=True, text=True, timeout=150)

    first = start_snakemake(cluster, tmp_path, "all", snakefile=tmp_path / "Snakefile")
    wait_for(lambda: begin_and_end(tmp_path), "first writer")
    alive = program("unlock")
    assert alive.returncode == 1 and f"pid {first.pid}" in alive.stderr, alive
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    queued = program("unlock")
    assert queued.returncode == 1 and "2 Slurm jobs of the ended run" in queued.stderr, queued

    # Someone who takes the lock away by force all the same: the second copy waits for the first.
    for path in (tmp_path / ".snakemake/locks").iterdir():
        path.unlink()
    second = start_snakemake(cluster, tmp_path, "target.txt", snakefile=tmp_path / "Snakefile")
    text = finish(second)
    assert second.returncode == 0, text
    events = begin_and_end(tmp_path)
    assert [kind for kind, _, _ in events] == ["begin", "end", "begin", "end"]
    assert events[0][1] == events[1][1] != events[2][1] == events[3][1]

    listed = program("slurm_jobs")
    assert "rule_other" in listed.stdout and "1 jobs in the queue" in listed.stdout, listed
    cancelled = program("slurm_jobs", "--cancel")
    assert cancelled.returncode == 0 and cluster.run("squeue", "--noheader") == "", cancelled
    assert program("unlock").returncode == 0
