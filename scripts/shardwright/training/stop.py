"""A polite stop: SIGTERM, SIGINT or SIGUSR1 ask the run to finish its step, save and end."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether somebody asked this process to stop.

    Loader workers are forked and inherit the handler. A scheduler signals them too, but the rank
    needs them to answer for their place in the data while it saves: there the signal only sets a
    timer that ends the worker when the grace is over.

    Args:
        grace_s: Seconds a loader worker lives on after the signal.
    """

    def __init__(self, grace_s: int) -> None:
        self.signal: str | None = None
        self._owner = os.getpid()
        self._grace_s = grace_s
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        if os.getpid() == self._owner:
            self.signal = signal.Signals(number).name
        else:
            signal.alarm(self._grace_s)
