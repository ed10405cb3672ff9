"""List, or cancel, the Slurm jobs that Shardwright left in the queue: those of this folder, or of all.

    python scripts/slurm_jobs.py            # of the build run in this folder
    python scripts/slurm_jobs.py --cancel

After `kill -9` or a lost login node, the jobs of the dead Snakemake go on. They do no harm (each program
holds a lock on its target, so a second copy waits for the first), but the queue is yours to clean.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.slurm import SlurmJob, ask, queued_jobs

END_S = 120.0


def cancel(jobs: list[SlurmJob], folder: str | None) -> None:
    """Cancel `jobs` and wait until the queue has none of them.

    Raises:
        BuildError: Some were still there after two minutes.
    """
    if not jobs:
        return
    ask("scancel", *(job.job_id for job in jobs))
    deadline = time.monotonic() + END_S
    wanted = {job.job_id for job in jobs}
    while left := [job for job in queued_jobs(folder) if job.job_id in wanted]:
        if time.monotonic() > deadline:
            raise BuildError(
                "job " + " ".join(job.job_id for job in left),
                found=f"state {left[0].state} {END_S:.0f} s after scancel",
                expected="no such job",
                next_step="see `scontrol show job`; a node that does not answer keeps its jobs",
            )
        time.sleep(0.5)


def main(argv: list[str] | None = None) -> int:
    """List the jobs and, if asked, cancel them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(), help="working directory of the build")
    parser.add_argument("--everywhere", action="store_true", help="of every build of yours")
    parser.add_argument("--cancel", action="store_true", help="cancel what is listed")
    args = parser.parse_args(argv)
    folder = None if args.everywhere else str(args.directory.resolve())
    jobs = queued_jobs(folder)
    for job in jobs:
        print(f"{job.job_id}\t{job.state}\t{job.where}\t{job.comment}\t{job.name}\t{job.folder}")
    if args.cancel:
        cancel(jobs, folder)
    print(f"{len(jobs)} jobs {'cancelled' if args.cancel else 'in the queue'}")
    return 0


if __name__ == "__main__":
    run_cli(main)
