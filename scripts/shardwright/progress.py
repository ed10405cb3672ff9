"""Lines that show how a long transfer gets on, and the end of one that does not.

Standard library only.
"""

from __future__ import annotations

import time

MEGABYTE = 1_000_000
WINDOW_S = 60.0
MIN_BYTES_PER_S = 1000.0
PRINT_EVERY_S = 10.0


class Stalled(Exception):
    """The sender is alive but sends next to nothing."""


class Progress:
    """Counts the bytes of one transfer, prints a line now and then, refuses to wait for ever.

    Args:
        label: What is transferred, for the printed lines.
        total: Bytes when done.
        done: Bytes that were there already.
        window_s: How long the rate may stay below `MIN_BYTES_PER_S`.
    """

    def __init__(self, label: str, total: int, done: int = 0, window_s: float = WINDOW_S) -> None:
        self.label, self.total, self.window_s = label, total, window_s
        self._printed = time.monotonic()
        self.restart(done)

    def restart(self, done: int = 0) -> None:
        """Count from `done` on: the sender began again, as if nothing had come before."""
        now = time.monotonic()
        self.done = done
        self._started, self._start_bytes = now, done
        self._window_start, self._window_bytes = now, done

    def advance(self, count: int) -> None:
        """Count `count` more bytes.

        Raises:
            Stalled: The last `window_s` seconds brought less than `MIN_BYTES_PER_S`.
        """
        self.done += count
        now = time.monotonic()
        if now - self._window_start >= self.window_s:
            brought = self.done - self._window_bytes
            if brought < MIN_BYTES_PER_S * self.window_s and self.done < self.total:
                raise Stalled(f"only {brought} bytes in {now - self._window_start:.0f} s")
            self._window_start, self._window_bytes = now, self.done
        if now - self._printed >= PRINT_EVERY_S:
            self._printed = now
            print(self.line(now), flush=True)

    def line(self, now: float) -> str:
        """Return one line: how much of how much, how fast, how long still."""
        rate = (self.done - self._start_bytes) / max(now - self._started, 1e-9)
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate > 0 else "stalled"
        share = 100 * self.done / max(self.total, 1)
        return (
            f"{self.label}: {self.done / MEGABYTE:,.1f} of {self.total / MEGABYTE:,.1f} MB "
            f"({share:.0f} %), {rate / MEGABYTE:.1f} MB/s, {left}"
        )
