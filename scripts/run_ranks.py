"""Run a program as N ranks on this node, or on every node of a Slurm allocation.

    run_ranks.py --ranks-per-node 8 --expect-gpus 8 -- scripts/train_model.py --manifest ...

SIGTERM, SIGINT or SIGUSR1 reach every rank as SIGUSR1, once; ranks that have not ended after the
grace period are killed. Ranks never outlive this program.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.launch import Launch, become_rank, launch, run_agent


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run the part it names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the Slurm allocation to use")
    parser.add_argument("--ranks-per-node", type=int, default=1, help="processes on each node")
    parser.add_argument("--expect-gpus", type=int, default=0, help="GPUs that each node must show")
    parser.add_argument("--grace-s", type=float, default=30.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--lock", type=Path, help="file to hold while running: one run for this target")
    parser.add_argument("--container", default="", help="pyxis:IMAGE or apptainer:IMAGE to run in")
    parser.add_argument("--part", choices=["launcher", "agent", "rank"], default="launcher")
    parser.add_argument("--rendezvous", default="127.0.0.1:0", help="host:port of the agents' meeting")
    parser.add_argument("program", nargs="+", help="after --: the Python program and its options")
    args = parser.parse_args(argv)
    if args.part == "rank":
        become_rank(args.program)
    job = Launch(
        args.nodes,
        args.ranks_per_node,
        args.expect_gpus,
        args.grace_s,
        args.rendezvous,
        args.program,
        args.container,
    )
    return run_agent(job) if args.part == "agent" else launch(job, args.lock)


if __name__ == "__main__":
    run_cli(main)
