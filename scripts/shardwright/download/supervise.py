"""Run a worker in its own process group, watch its progress, end it when there is none."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shardwright.download.settings import Fetching
from shardwright.files import CHECKOUT

_LOOK_EVERY_S = 0.5
_START_S = 120.0  # imports on a cold shared file system
Counts = dict[str, int]


def worker_env() -> dict[str, str]:
    """Return the environment of a worker: one thread a library, a resolver that gives up in time."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {
        "RES_OPTIONS": "timeout:3 attempts:2",
        **env,
        "PYTHONPATH": str(CHECKOUT / "scripts"),
        "OMP_NUM_THREADS": "1",
        "OPENCV_LOG_LEVEL": "OFF",
        "NO_ALBUMENTATIONS_UPDATE": "1",
    }


class _Watch:
    """Decides from the counts whether a worker is still getting on."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._began = self._moved = time.monotonic()
        self._started = False

    def moved(self) -> None:
        """Note that the counts changed."""
        self._moved, self._started = time.monotonic(), True

    def verdict(self) -> str | None:
        """Return why the worker must end, or None."""
        now, fetching = time.monotonic(), self._fetching
        if now - self._began > fetching.shard_deadline_s:
            return f"not finished after {fetching.shard_deadline_s:g} s (download.shard_deadline_s)"
        patience = fetching.stall_s if self._started else max(fetching.stall_s, _START_S)
        if now - self._moved > patience:
            return f"no row finished for {patience:g} s (download.stall_s)"
        return None


def _end_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _follow(
    process: subprocess.Popen, pipe: int, watch: _Watch, on_counts: Callable[[Counts], None]
) -> str | None:
    """Read counts until the worker closes its end; return why it must be ended, or None."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if selector.select(_LOOK_EVERY_S):
                data = os.read(pipe, 1 << 16)
                if not data:
                    return None
                *lines, pending = (pending + data).split(b"\n")
                if lines:
                    watch.moved()
                    on_counts(json.loads(lines[-1]))
            problem = watch.verdict()
            if problem:
                return problem


def _how_it_ended(status: int) -> str | None:
    if status == 0:
        return None
    if status < 0:
        return f"the worker died with {signal.Signals(-status).name}"
    return f"the worker ended with exit status {status}"


def run_worker(
    python: Sequence[str], job_file: Path, log: Path, fetching: Fetching, on_counts: Callable[[Counts], None]
) -> tuple[int, str | None]:
    """Run one worker to its end.

    Args:
        python: Command of the interpreter whose environment downloads.
        job_file: A saved `Job`.
        log: Takes the worker's output.
        fetching: Deadlines.
        on_counts: Called with the counts of finished rows by outcome, a few times a second at most.

    Returns:
        The exit status, and why the run is no good (None if it ended well).
    """
    reading, writing = os.pipe()
    command = [*python, "-m", "shardwright.download.worker", str(job_file), str(writing)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed when we end, whatever ends us
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
            cwd=CHECKOUT / "scripts",
            env=worker_env(),
        )
    os.close(writing)
    try:
        problem = _follow(process, reading, _Watch(fetching), on_counts)
        if problem is None:
            problem = _how_it_ended(process.wait(timeout=60))
    except subprocess.TimeoutExpired:
        problem = "the worker was done but did not end"
    finally:
        _end_group(process)
        os.close(reading)
        process.stdin.close()
    return process.returncode, problem
