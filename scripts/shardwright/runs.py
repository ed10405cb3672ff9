"""Who runs Snakemake in a folder: recorded at its start, looked up before its lock is taken away.

Snakemake's own lock holds file names alone, so it cannot tell a live run from a dead one. Standard
library only: the Snakefile imports this module.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright.files import read_json, write_json

RECORD = Path(".snakemake/shardwright_run.json")
LOCKS = Path(".snakemake/locks")


@dataclass(frozen=True)
class Run:
    """One start of Snakemake. `started` is the kernel's own clock reading: process ids are used again."""

    host: str
    pid: int
    started: str
    executor: str
    slurm_job: str


def start_time(pid: int) -> str:
    """Return when process `pid` of this machine started (boot and ticks since); empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else f"{boot} {fields[19]}"


def record_run(folder: Path, executor: str = "") -> None:
    """Write down that this process runs Snakemake in `folder`; `executor` once it is known."""
    pid = os.getpid()
    run = Run(socket.gethostname(), pid, start_time(pid), executor, os.environ.get("SLURM_JOB_ID", ""))
    write_json(folder / RECORD, asdict(run))


def last_run(folder: Path) -> Run | None:
    """Return the last recorded start in `folder`, if there is one."""
    path = folder / RECORD
    return Run(**read_json(path)) if path.is_file() else None


def is_alive(run: Run) -> bool:
    """Tell whether a run of this machine still goes on."""
    return bool(run.started) and start_time(run.pid) == run.started


def snakemakes_in(folder: Path) -> list[int]:
    """Return the processes of this machine that run Snakemake in `folder`, recorded or not.

    The Snakemake that runs one job of a run (it is told which) is not a run.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            is_run = any(word.rpartition(b"/")[2] == b"snakemake" for word in words[:3])
            if is_run and b"--target-jobs" not in words and (path / "cwd").resolve() == folder.resolve():
                found.append(int(path.name))
    return sorted(found)


def is_locked(folder: Path) -> bool:
    """Tell whether Snakemake holds, or left, its lock on `folder`."""
    return any((folder / LOCKS).glob("*.lock"))
