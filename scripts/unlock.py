"""Take away the lock that a killed Snakemake left, after making sure that nothing runs there any more.

    python scripts/unlock.py                 # in the folder of the build
    python scripts/unlock.py --stale-only    # the same, silent where there is no lock (make run)

It looks for a live Snakemake on this machine, for the Slurm job it ran in, and for jobs it left in the
queue. Finished work and its records stay; never delete .snakemake for a lock.
"""

from __future__ import annotations

import argparse
import shutil
import socket
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.runs import LOCKS, RECORD, Run, is_alive, is_locked, last_run, snakemakes_in
from shardwright.slurm import ask, queued_jobs


def refuse_if_alive(folder: Path, run: Run | None, host_is_gone: bool) -> None:
    """Look for the run that holds the lock of `folder`.

    Raises:
        BuildError: It goes on here, or may go on on another machine.
    """
    where = str(folder.resolve())
    here = snakemakes_in(folder) or ([run.pid] if run and is_alive(run) else [])
    if here:
        raise BuildError(
            where,
            found=f"Snakemake at work (pid {' '.join(map(str, here))} on {socket.gethostname()})",
            expected="no live run",
            next_step="wait for it, or end it with `kill -INT` and run this again",
        )
    if run is None and not host_is_gone:
        raise BuildError(
            where,
            found="a lock, and no word of who took it",
            expected=f"the record that our Snakefile leaves in {RECORD}",
            next_step="make sure that no machine runs Snakemake in this folder, then add --host-is-gone",
        )
    if run and run.host != socket.gethostname() and not host_is_gone and not _job_is_gone(run):
        raise BuildError(
            where,
            found=f"a lock of pid {run.pid} on {run.host}",
            expected="a run of this machine, whose end can be seen from here",
            next_step=f"run this on {run.host}; if that machine or process is gone, add --host-is-gone",
        )


def _job_is_gone(run: Run) -> bool:
    """Tell whether the run was itself a Slurm job that the queue no longer knows."""
    if not run.slurm_job:
        return False
    return run.slurm_job not in ask("squeue", "--noheader", "--me", "--format=%A").split()


def refuse_if_queued(folder: Path, run: Run | None) -> None:
    """Look for jobs that the dead run left in the queue.

    Raises:
        BuildError: There are some.
    """
    if run is None or run.executor != "slurm":
        return
    if jobs := queued_jobs(str(folder.resolve())):
        raise BuildError(
            str(folder.resolve()),
            found=f"{len(jobs)} Slurm jobs of the ended run ({' '.join(job.job_id for job in jobs[:10])})",
            expected="none: a new run would submit them a second time",
            next_step="python scripts/slurm_jobs.py --cancel, or wait until they have ended",
        )


def main(argv: list[str] | None = None) -> int:
    """Check for a live run, then remove the lock; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(), help="working directory of the build")
    parser.add_argument("--stale-only", action="store_true", help="say nothing where there is no lock")
    parser.add_argument("--host-is-gone", action="store_true", help="the machine that held the lock is dead")
    args = parser.parse_args(argv)
    if not is_locked(args.directory):
        if not args.stale_only:
            print("no lock")
        return 0
    run = last_run(args.directory)
    refuse_if_alive(args.directory, run, args.host_is_gone)
    refuse_if_queued(args.directory, run)
    shutil.rmtree(args.directory / LOCKS)
    print("removed the lock of a run that has ended")
    return 0


if __name__ == "__main__":
    run_cli(main)
