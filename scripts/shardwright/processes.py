"""Processes that do not outlive the one that started them. Standard library only."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(sig: signal.Signals) -> None:
    """Have Linux send `sig` to this process when its parent ends; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
