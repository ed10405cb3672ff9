"""The compiled halves of modules: C source beside a module of the same name, which `make env` compiles."""

from __future__ import annotations

import ctypes
from pathlib import Path


def load_native(module_file: str) -> ctypes.CDLL | None:
    """Return the library of a module, if it was compiled from the present source for this machine.

    Args:
        module_file: The module's `__file__`.
    """
    source = Path(module_file).with_suffix(".c")
    library = source.with_name(f"lib{source.stem}.so")
    try:
        if library.stat().st_mtime < source.stat().st_mtime:
            return None
        return ctypes.CDLL(str(library))
    except OSError:
        return None
