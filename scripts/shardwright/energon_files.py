"""What of Energon reads and writes `.nv-meta`, without torch.

Energon's packages import all of it, and torch, in their `__init__`: 4 s of CPU in a job that needs
neither. Its modules for files do without. So they are imported below packages of the same names
and paths whose `__init__` does not run, and the names are given back: a later `import
megatron.energon` in this process is the whole Energon.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_ROOT = "megatron.energon"
_PACKAGES = ("", ".flavors", ".flavors.webdataset")


def _drop() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == _ROOT or name.startswith(f"{_ROOT}.")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def _bare_packages() -> Iterator[None]:
    """Stand in for Energon's packages while a with block imports modules below them."""
    (parent,) = importlib.util.find_spec("megatron").submodule_search_locations or [None]
    whole = _drop()
    try:
        for suffix in _PACKAGES:
            package = ModuleType(_ROOT + suffix)
            package.__path__ = [str(Path(parent, "energon", *suffix.split(".")[1:]))]
            sys.modules[package.__name__] = package
        yield
    finally:
        _drop()
        sys.modules.update(whole)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_ROOT}.{name}")


with _bare_packages():
    collapse = _module("bracecollapse").collapse
    EPath = _module("epathlib").EPath
    SqliteIndexReader = _module("flavors.webdataset.indexing").SqliteIndexReader
    SqliteIndexWriter = _module("flavors.webdataset.indexing").SqliteIndexWriter
    WebdatasetMeta = _module("flavors.webdataset.metadata").WebdatasetMeta
    WebdatasetInfo = _module("flavors.webdataset.structs").WebdatasetInfo
    WebdatasetSplits = _module("flavors.webdataset.structs").WebdatasetSplits
    to_json_object = _module("typed_converter").to_json_object

energon_version = importlib.metadata.version("megatron-energon")
