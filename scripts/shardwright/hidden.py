"""Packages kept out of a process that does not use them."""

from __future__ import annotations

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
