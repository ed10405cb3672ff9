"""Fork ranks from a server that has torch and transformers loaded: a rank in a moment, not in seconds."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "train_preload"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _become(rank: int, world_size: int, port: int, log: str, work: Callable, args: tuple) -> None:
    if world_size > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"OMP_NUM_THREADS": "1", "SHARDWRIGHT_LAUNCHED": "1"}
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = stream = os.fdopen(handle, "a", buffering=1)
    try:
        status = work(*args) or 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the last stop of a forked process
        traceback.print_exc()
        status = 1
    stream.flush()
    os._exit(status)


class RankGroup:
    """Ranks of one run as processes of their own; `log` collects what they print."""

    def __init__(self, world_size: int, log: Path, work: Callable, *args: object) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        port = _free_port()
        self.ranks = [
            SERVER.Process(target=_become, args=(rank, world_size, port, str(log), work, args))
            for rank in range(world_size)
        ]
        for process in self.ranks:
            process.start()

    def wait(self, deadline_s: float = 200) -> list[int]:
        """Exit statuses of all ranks; ranks still running at the deadline are killed and fail the test."""
        end = time.monotonic() + deadline_s
        for process in self.ranks:
            process.join(max(0.1, end - time.monotonic()))
        late = [process for process in self.ranks if process.is_alive()]
        for process in late:
            process.kill()
        assert not late, f"{len(late)} ranks still ran after {deadline_s} s:\n{self.log.read_text()[-4000:]}"
        return [process.exitcode for process in self.ranks]

    def signal(self, number: int) -> None:
        """Send a signal to every rank."""
        for process in self.ranks:
            if process.is_alive():
                os.kill(process.pid, number)


def run_ranks(world_size: int, log: Path, work: Callable, *args: object) -> str:
    """Run to the end; returns what was printed. Any status but 0 fails the test."""
    statuses = RankGroup(world_size, log, work, *args).wait()
    assert statuses == [0] * world_size, log.read_text()[-4000:]
    return log.read_text()
