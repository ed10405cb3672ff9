"""Many trivial shards on the test cluster: how many sbatch and srun calls, how long, by way of submitting.

    .venv-slurm/bin/python tests/bench/slurm_shards.py --shards 24         # all ways; a job a shard is slow
    .venv-slurm/bin/python tests/bench/slurm_shards.py --shards 216 --ways tasks batch groups plain array

A shard is one job that does nothing, so what is measured is the cost of submitting alone:

    tasks   scripts/slurm_shards.py: one sbatch array of four local Snakemakes, each with every fourth shard
    batch   a rule that builds eight shards
    groups  Snakemake's --groups with --group-components: eight shards a job
    plain   a job a shard
    array   a job a shard, submitted through the plugin's --slurm-array-jobs
    srun    a job a shard, each in a job step of its own (the plugin's way unless told otherwise)

The nodes are fake: all jobs share this machine's cores, so compare the ways, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurm.cluster import SlurmCluster, temporary_cluster

WORKFLOW = """
import os
SHARDS = [f"{i:08d}" for i in range(int(config["num_shards"]))]
BATCHES = [SHARDS[i:i + int(config["per_job"])] for i in range(0, len(SHARDS), int(config["per_job"]))]
NUMBER = int(os.environ.get("SLURM_ARRAY_TASK_ID", "1"))
COUNT = int(os.environ.get("SLURM_ARRAY_TASK_COUNT", "1"))

rule all:
    input: expand("audit/{shard}.json", shard=SHARDS)

rule share:
    input: expand("audit/{shard}.json", shard=SHARDS[NUMBER - 1::COUNT])

if int(config["per_job"]) == 1:
    rule shard:
        output: "audit/{shard}.json"
        shell: "touch {output}"
else:
    for number, batch in enumerate(BATCHES):
        rule:
            name: f"batch_{number:05d}"
            output: expand("audit/{shard}.json", shard=batch)
            shell: "touch {output}"
"""
PLUGIN = [
    *("--executor", "slurm", "--scheduler", "greedy", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20"),
    *("--default-resources", "slurm_partition=cpu", "mem_mb=30000", "runtime=30"),
]
NO_STEP = ["mpi=0"]
PER_JOB = 8
# name → (--jobs, shards a rule-level batch, further options)
WAYS = {
    "batch": (100, PER_JOB, NO_STEP),
    "groups": (100, 1, [*NO_STEP, "--groups", "shard=g", "--group-components", f"g={PER_JOB}"]),
    "plain": (100, 1, NO_STEP),
    # It waits until every shard is ready, so with fewer --jobs than shards it waits for ever; and without
    # a job step for each task, every task would build the first shard.
    # And the commands of a hundred tasks are more than one argument takes: plugin 2.8.0 then writes a
    # script whose options stand on lines of their own, so that all tasks of the array fail.
    "array": (100_000, 1, ["--slurm-array-jobs", "all", "--slurm-array-limit", "50"]),
    "srun": (100, 1, []),
}


def run_plugin(cluster: SlurmCluster, folder: Path, way: str, num_shards: int) -> None:
    """Build all shards through the executor plugin, in the way named."""
    jobs, per_job, options = WAYS[way]
    command = [sys.executable, "-m", "snakemake", "all", "--jobs", str(jobs), *PLUGIN, *options]
    command += ["--config", f"num_shards={num_shards}", f"per_job={per_job}"]
    subprocess.run(command, cwd=folder, env=cluster.env(), check=True, capture_output=True, timeout=1800)


def run_tasks(cluster: SlurmCluster, folder: Path, num_shards: int, num_tasks: int = 4) -> None:
    """Build all shards as scripts/slurm_shards.py does: one array of local Snakemakes, then the rest."""
    snakemake = f"{sys.executable} -m snakemake"
    options = f"--scheduler greedy --config num_shards={num_shards} per_job=1"
    cluster_call = ["sbatch", "--wait", f"--array=1-{num_tasks}", "--partition=cpu", "--cpus-per-task=16"]
    wrap = f"--wrap={snakemake} share --nolock --cores 16 {options}"
    for command in ([*cluster_call, wrap], f"{snakemake} all --cores 1 {options}".split()):
        subprocess.run(command, cwd=folder, env=cluster.env(), check=True, capture_output=True, timeout=1800)


def measure(way: str, num_shards: int) -> dict[str, object]:
    """Run one way on a fresh cluster; return its counts and seconds."""
    with tempfile.TemporaryDirectory() as name, temporary_cluster() as cluster:
        folder = Path(name)
        (folder / "Snakefile").write_text(WORKFLOW)
        started = time.monotonic()
        if way == "tasks":
            run_tasks(cluster, folder, num_shards)
        else:
            run_plugin(cluster, folder, way, num_shards)
        seconds = time.monotonic() - started
        built = len(list(folder.glob("audit/*.json")))
        return {"way": way, "shards": built, **cluster.calls(), "wall_s": round(seconds, 1)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", type=int, default=24)
    ways = ["tasks", *WAYS]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    args = parser.parse_args(argv)
    for way in args.ways:
        print(json.dumps(measure(way, args.shards)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
