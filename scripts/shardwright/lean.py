"""A short start for programs that run once a shard or tar: what they do not use is not imported."""

from __future__ import annotations

import gc
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
    """Keep packages out of this process that others import where they are: pyarrow imports
    NumPy when it is imported itself, and pandas for the first array it makes."""
    sys.meta_path.insert(0, _Hidden(names))


def start_lean() -> None:
    """For programs that use neither NumPy nor pandas, and make no cyclic garbage worth a search."""
    hide_packages("numpy", "pandas")
    gc.disable()
