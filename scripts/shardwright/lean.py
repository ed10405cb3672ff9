"""A short start for programs that run once a shard or tar: what they do not use is not imported."""

from __future__ import annotations

import gc
import os

from shardwright.hidden import hide_packages


def start_lean(*hidden: str) -> None:
    """Hide packages, and leave out two things that cost a short program more than they give.

    Samples by the ten thousand are no cyclic garbage, and looking for some takes 4 % of an audit's CPU and
    three quarters of an index's. No program here has the linear algebra for which NumPy starts a thread
    a core.
    """
    hide_packages(*hidden)
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
