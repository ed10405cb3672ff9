"""Build all raw shards and their audits in a few whole-node Slurm jobs: one sbatch, no job a shard.

    python scripts/slurm_shards.py --jobs 4 [-- options of Snakemake, such as --configfile ...]

Each task of one job array runs an ordinary local Snakemake on a node of its own for every n-th shard.
A shard keeps its retries, its log and its target, and a failed one takes no other with it. When all is
done, `snakemake --workflow-profile profiles/slurm` goes on from there. Account, partition and further
options come from the same SHARDWRIGHT_ variables as in profiles/slurm.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.slurm import JOB_PREFIX

CHECKOUT = Path(__file__).resolve().parents[1]
LOG_DIR = Path("logs/slurm")


def snakemake_command(target: str, options: list[str]) -> list[str]:
    """The local Snakemake that builds `target` of this workflow here."""
    return [
        *(sys.executable, "-m", "snakemake", target),
        *("--snakefile", str(CHECKOUT / "Snakefile")),
        *("--workflow-profile", str(CHECKOUT / "profiles/default")),
        *options,
    ]


def task_script(options: list[str]) -> str:
    """The shell command of one array task. `--nolock`: the tasks share one folder, not one output."""
    command = snakemake_command("shard_share", ["--nolock", "--keep-going", *options])
    return f'exec {shlex.join(command)} --cores "${{SLURM_CPUS_ON_NODE:-1}}"'


def sbatch_command(jobs: int, hours: float, log_dir: Path, options: list[str]) -> list[str]:
    """The one submission: `jobs` tasks, each with a whole CPU node for at most `hours`."""
    account = os.environ.get("SHARDWRIGHT_ACCOUNT", "")
    return [
        *("sbatch", "--parsable", "--wait", f"--array=1-{jobs}", "--nodes=1", "--exclusive", "--mem=0"),
        *(f"--partition={os.environ.get('SHARDWRIGHT_CPU_PARTITION', 'cpu')}", "--no-requeue"),
        *([f"--account={account}"] if account else []),
        *shlex.split(os.environ.get("SHARDWRIGHT_CPU_EXTRA", "")),
        *(f"--time={max(1, round(hours * 60))}", f"--output={log_dir}/shards-%A_%a.log"),
        *(f"--job-name={JOB_PREFIX}_shards", f"--comment=shards_of_{jobs}_jobs"),
        f"--wrap={task_script(options)}",
    ]


def main(argv: list[str] | None = None) -> int:
    """Fetch the metadata here, then submit the array and wait for it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, required=True, help="whole-node jobs to spread the shards over")
    parser.add_argument("--hours", type=float, default=12, help="time limit of each job (default 12)")
    parser.add_argument("--show", action="store_true", help="print the commands, run nothing")
    parser.add_argument("options", nargs="*", help="after --: options of Snakemake, for every part")
    args = parser.parse_args(argv)
    first = [*snakemake_command("metadata", args.options), "--cores", "1"]
    submit = sbatch_command(args.jobs, args.hours, LOG_DIR, args.options)
    if args.show:
        print(shlex.join(first), shlex.join(submit), sep="\n")
        return 0
    LOG_DIR.mkdir(parents=True, exist_ok=True)
    subprocess.run(first, check=True, stdin=subprocess.DEVNULL)
    done = subprocess.run(submit, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BuildError(
            f"{args.jobs} shard jobs",
            found=f"exit status {done.returncode}",
            expected="every shard built and audited",
            next_step=f"see {LOG_DIR}/shards-*.log and run the same command again: it builds what is missing",
        )
    return 0


if __name__ == "__main__":
    run_cli(main)
