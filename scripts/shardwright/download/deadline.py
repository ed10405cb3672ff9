"""The time that one URL may take, all in all. Standard library only."""

from __future__ import annotations

import time

from shardwright.download.fetch_error import FetchError


class Deadline:
    """A point in time after which every further wait is refused."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, none or fewer when it is over."""
        return self._end - time.monotonic()

    def passed(self) -> FetchError:
        """Return the failure of a URL that was not finished in time."""
        return FetchError("timeout", f"not finished after {self.seconds:g} s", final=True)

    def left(self) -> float:
        """Return the seconds left; raises `passed()` when there are none."""
        left = self.remaining()
        if left <= 0:
            raise self.passed()
        return left
