"""A short start for programs that run once a shard or tar: what they do not use is not imported."""

from __future__ import annotations

import gc
import os
import sys


class _Hidden:
    """A finder, for `sys.meta_path`, that answers as if some packages were not installed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Refuse the packages; leave all others to the next finder."""
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is hidden from this program", name=fullname)


def hide_packages(*names: str) -> None:
    """Keep packages out of this process that others import where they find them.

    PyArrow imports NumPy when it is imported itself, and pandas for the first array it makes.
    """
    sys.meta_path.insert(0, _Hidden(names))


def start_lean(*hidden: str) -> None:
    """Hide packages, and leave out two things that cost a short program more than they give.

    Samples by the ten thousand are no cyclic garbage, and looking for some takes 4 % of the time;
    no program here has the linear algebra for which NumPy starts a thread a core.
    """
    hide_packages(*hidden)
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
