"""Start ranks with torch's elastic agent, pass on signals, leave no orphan behind.

launcher (one a job) → agent (one a node) → ranks. The launcher is light: it checks devices, holds
the lock and waits. Each child asks the kernel for a signal when its parent dies, so that a
`kill -9` anywhere ends the whole tree.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shardwright.container import container_command
from shardwright.errors import BuildError
from shardwright.files import CHECKOUT, owner_lock
from shardwright.processes import end_with_parent
from shardwright.slurm import num_allocated_nodes, seconds_left

EXIT_STOPPED = 75  # EX_TEMPFAIL: stopped on request with its state saved; run again to resume
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
JOIN_TIMEOUT_S = 1800
REAP_S = 15.0  # between the end of the grace and our own SIGKILL
PROGRAM = Path(__file__).resolve().parents[1] / "run_ranks.py"
RANK_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|NODE_RANK"
    r"|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+|PET_\w+|OMPI_\w+|PMI_\w+|PMIX_\w+)"
)
# What describes the step we are in; a step of our own finds the job by its id alone.
STEP_VARIABLES = re.compile(r"(SLURM|SRUN|SBATCH)_(?!(JOB_ID|CONF)$)\w+")


@dataclass(frozen=True)
class Launch:
    """What to run: `ranks_per_node` processes of `program` on each of `nodes` nodes."""

    nodes: int
    ranks_per_node: int
    expect_gpus: int
    grace_s: float
    rendezvous: str
    program: list[str]
    container: str = ""

    def part(self, name: str, rendezvous: str) -> list[str]:
        """The command line that runs one part of this launch."""
        return [
            *(sys.executable, str(PROGRAM), "--part", name),
            *("--nodes", str(self.nodes), "--ranks-per-node", str(self.ranks_per_node)),
            *("--expect-gpus", str(self.expect_gpus), "--grace-s", str(self.grace_s)),
            *("--rendezvous", rendezvous, "--", *self.program),
        ]


def visible_gpus() -> int:
    """Count the GPUs this process may use, without importing torch."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        return next((n for n, name in enumerate(names) if name in ("", "-1")), len(names))
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def check_gpus(expected: int) -> None:
    """Refuse to start on a node that shows fewer GPUs than asked.

    Raises:
        BuildError: Fewer are visible.
    """
    found = visible_gpus()
    if found < expected:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise BuildError(
            f"node {socket.gethostname()}",
            found=f"{found} visible GPUs"
            + (f" (CUDA_VISIBLE_DEVICES={listed!r})" if listed is not None else ""),
            expected=f"{expected}",
            next_step="ask the scheduler for them (profiles/slurm: set-resources), "
            "or set train.ranks_per_node or model.ranks to what the node has",
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _clear(pattern: re.Pattern[str]) -> None:
    for name in [name for name in os.environ if pattern.fullmatch(name)]:
        del os.environ[name]


def _srun(job: Launch) -> list[str]:
    num_nodes = num_allocated_nodes()
    if num_nodes < job.nodes or not shutil.which("srun"):
        raise BuildError(
            f"--nodes {job.nodes}",
            found=f"a Slurm allocation of {num_nodes} nodes" if num_nodes else "no Slurm allocation",
            expected=f"an allocation of {job.nodes} nodes, and srun",
            next_step="submit the rule with `nodes` set in the profile, or set train.nodes to 1",
        )
    _clear(STEP_VARIABLES)
    return [
        *("srun", "--overlap", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={len(os.sched_getaffinity(0))}", "--cpu-bind=none", "--kill-on-bad-exit=1"),
    ]


def child_command(job: Launch) -> list[str]:
    """The command that the launcher starts: one rank, an agent, or srun with an agent on each node."""
    several = job.nodes > 1
    name = "agent" if several or job.ranks_per_node > 1 else "rank"
    command = job.part(name, f"{socket.gethostname()}:{_free_port()}" if several else job.rendezvous)
    options: list[str] = []
    if job.container:
        options, command = container_command(job.container, command, [CHECKOUT, Path.cwd()])
    return (_srun(job) + options if several or options else []) + command


def launch(job: Launch, lock: Path | None) -> int:
    """Run all ranks to their end; returns 0, 75 (stopped on request) or the status of the failure.

    Raises:
        BuildError: Fewer GPUs than expected, no allocation of enough nodes, a held lock.
    """
    if job.nodes == 1:
        check_gpus(job.expect_gpus)
    _clear(RANK_VARIABLES)
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(owner_lock(lock))] if lock else []
        os.environ["SHARDWRIGHT_LAUNCHED"] = "1"
        child = subprocess.Popen(
            child_command(job),
            start_new_session=True,
            pass_fds=kept,
            preexec_fn=lambda: end_with_parent(signal.SIGUSR1),
        )
        return _wait(child, job.grace_s)


def _time_limit(known: float = math.inf) -> float:
    """Return when (monotonic) this job's time limit comes; `known` if Slurm does not say."""
    try:
        left = seconds_left()
    except BuildError as error:
        print(f"the time limit of this job cannot be asked for: {error}", flush=True)
        return known
    return math.inf if left is None else time.monotonic() + left


def _stop_time(limit: float, grace_s: float) -> float:
    """Return when ranks must be asked to stop, to have their whole grace before `limit`.

    At the limit itself Slurm leaves a job the cluster's KillWait, 30 s by default. A job shorter than
    the grace works for half its time, so that each attempt gets on.
    """
    now = time.monotonic()
    return max(limit - grace_s - REAP_S, now + (limit - now) / 2)


def _wait(child: subprocess.Popen, grace_s: float) -> int:
    asked_at: list[float] = []

    def pass_on(*_: object) -> None:
        if not asked_at:
            asked_at.append(time.monotonic())
            child.send_signal(signal.SIGUSR1)

    for sig in STOP_SIGNALS:
        signal.signal(sig, pass_on)
    limit = _time_limit()
    stop_time = _stop_time(limit, grace_s)
    while True:
        try:
            status = child.wait(timeout=1.0)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            if asked_at and time.monotonic() - asked_at[0] > grace_s + REAP_S:
                os.killpg(child.pid, signal.SIGKILL)
        if not asked_at and time.monotonic() >= stop_time:
            known, limit = limit, _time_limit(limit)
            if limit > known + 60:  # extended meanwhile
                stop_time = _stop_time(limit, grace_s)
            else:
                print("the time limit is near: asking every rank to save and stop", flush=True)
                pass_on()


def run_agent(job: Launch) -> int:
    """Start this node's ranks through torch's elastic agent; returns the status of the first failure."""
    check_gpus(job.expect_gpus)
    end_with_parent(signal.SIGUSR1)
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads_per_rank(job.ranks_per_node)))
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A scheduler signals every process; the agent must outlive its ranks' last save.
        signal.signal(sig, lambda *_: None)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=job.nodes,
        max_nodes=job.nodes,
        nproc_per_node=job.ranks_per_node,
        run_id="shardwright",
        rdzv_backend="c10d",
        rdzv_endpoint=job.rendezvous,
        rdzv_configs={"join_timeout": JOIN_TIMEOUT_S},
        local_addr="127.0.0.1" if job.nodes == 1 else None,
        signals_to_handle="SIGUSR1",
        shutdown_timeout=int(job.grace_s),
        max_restarts=0,
        monitor_interval=0.2,
    )
    rank = job.part("rank", job.rendezvous)
    try:
        elastic_launch(config, rank[0])(*rank[1:])
    except SignalException:
        return EXIT_STOPPED
    except ChildFailedError as failed:
        rank_number, failure = failed.get_first_failure()
        if failure.exitcode != EXIT_STOPPED:
            print(f"rank {rank_number} ended with status {failure.exitcode}; its error is above", flush=True)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


def _threads_per_rank(ranks: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def become_rank(program: list[str]) -> NoReturn:
    """Turn this process into one rank of `program`, which ends when its agent does."""
    end_with_parent(signal.SIGKILL if "RANK" in os.environ else signal.SIGUSR1)
    _clear(re.compile(r"SLURM_\w+"))
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads_per_rank(1)))
    os.execv(sys.executable, [sys.executable, *program])
