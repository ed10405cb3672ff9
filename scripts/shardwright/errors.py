"""One way to fail: say what was found, what was expected, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Callable


class BuildError(Exception):
    """A fault in the world (a file, a server, a config value), never a bug of ours.

    Args:
        subject: The file, key, shard or URL at fault.
        found: What was there.
        expected: What should have been there.
        next_step: What the reader can do about it.
    """

    def __init__(self, subject: str, *, found: str, expected: str, next_step: str) -> None:
        super().__init__(f"{subject}: found {found}; expected {expected}. Next: {next_step}")
        self.subject = subject
        self.found = found
        self.expected = expected
        self.next_step = next_step


def run_cli(main: Callable[[], int | None]) -> None:
    """Run a program's main; a BuildError becomes one line on stderr and exit status 1."""
    try:
        sys.exit(main() or 0)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
