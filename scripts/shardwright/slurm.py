"""What our programs ask Slurm: the nodes of this job, the jobs of a run. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from shardwright.errors import BuildError

JOB_PREFIX = "shardwright"
JOB_COMMENT = re.compile(r"(?:rule_|shards_)\S+")


@dataclass(frozen=True)
class SlurmJob:
    """One job in the queue: id, name (the run), state, nodes or reason, what it builds, where."""

    job_id: str
    name: str
    state: str
    where: str
    comment: str
    folder: str


def ask(*command: str) -> str:
    """Run a Slurm command and return what it printed.

    Raises:
        BuildError: It is not installed, or failed (with its own words).
    """
    if not shutil.which(command[0]):
        raise BuildError(
            command[0],
            found="no such command",
            expected="Slurm's commands on PATH",
            next_step="run this on a login node of the cluster",
        )
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BuildError(
            " ".join(command),
            found=done.stderr.strip() or f"exit status {done.returncode}",
            expected="an answer from Slurm",
            next_step="see whether `sinfo` answers; repeat when it does",
        )
    return done.stdout


def num_allocated_nodes() -> int:
    """Count the nodes of the job we run in; 0 outside a job.

    Slurm is asked, since the plugin's job step clears most SLURM variables and a step's own
    describe the step.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id or not shutil.which("squeue"):
        return 0
    return int(ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%D").split()[0])


def seconds_left() -> float | None:
    """Return how long the job we run in may still take; None outside a job, or without a time limit.

    Raises:
        BuildError: Slurm did not answer.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id or not shutil.which("squeue"):
        return None
    text = ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%L").strip()
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def share_of_array(items: list[str]) -> list[str]:
    """Return the items of this task of a job array: every n-th, or all of them outside an array."""
    number = int(os.environ.get("SLURM_ARRAY_TASK_ID", "1"))
    count = int(os.environ.get("SLURM_ARRAY_TASK_COUNT", "1"))
    return items[number - 1 :: count]


def queued_jobs(folder: str | None = None) -> list[SlurmJob]:
    """List our user's Shardwright jobs that wait or run, of one working directory or of all."""
    fields = "%i\t%j\t%T\t%R\t%k\t%Z"
    text = ask("squeue", "--noheader", "--me", f"--format={fields}")
    jobs = [SlurmJob(*map(str.strip, line.split("\t"))) for line in text.splitlines() if line.strip()]
    return [
        job
        for job in jobs
        if job.name.startswith(JOB_PREFIX) and folder in (None, job.folder) and JOB_COMMENT.match(job.comment)
    ]
