"""A polite stop: SIGTERM, SIGINT or SIGUSR1 ask the run to finish its step, save and end."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether somebody asked this process to stop; installs the handlers."""

    def __init__(self) -> None:
        self.signal: str | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        self.signal = signal.Signals(number).name


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Let processes that are forked inside never receive a stop signal; ours waits until the end.

    A scheduler signals loader workers too, but the rank needs them to answer for their place in the
    data while it saves.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_children() -> None:
    """End what was forked under `shielded`; SIGTERM at exit would not reach it."""
    for child in multiprocessing.active_children():
        child.kill()
