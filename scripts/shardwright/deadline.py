"""A time limit for work that must not hang unseen."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from shardwright.errors import BuildError


@contextlib.contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Fail when the body takes longer than `seconds`. Main thread only.

    Raises:
        BuildError: The time is up.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise BuildError(
            what,
            found=f"no end after {seconds:.0f} s",
            expected="to be done by then",
            next_step="see whether the disk or the network file system answers, then run the same "
            "command again",
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
