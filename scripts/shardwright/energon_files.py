"""What of Energon reads and writes `.nv-meta`, without torch and without its object stores.

Energon's packages import all of it, and torch, in their `__init__`: 4 s of CPU in a job that needs
neither. Its modules for files do without. So they are imported below packages of the same names
and paths whose `__init__` does not run, and the names are given back: a later `import
megatron.energon` in this process is the whole Energon. Its paths, which are local or in an object
store, are local here, so that the client of the stores is not imported either.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from types import ModuleType

_ROOT = "megatron.energon"
_PACKAGES = ("", ".flavors", ".flavors.webdataset")
_PATHS = (".epathlib", ".epathlib.epath")


class EPath(PosixPath):
    """What the modules below ask of Energon's path, for files on this machine."""

    def local_path(self) -> Path:
        """Return where the file is."""
        return Path(self)

    def is_local(self) -> bool:
        """Say that no copy of the file is needed to open it."""
        return True


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
        for suffix in _PATHS:
            sys.modules[_ROOT + suffix] = module = ModuleType(_ROOT + suffix)
            module.EPath = EPath
        yield
    finally:
        _drop()
        sys.modules.update(whole)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_ROOT}.{name}")


with _bare_packages():
    collapse = _module("bracecollapse").collapse
    SqliteIndexReader = _module("flavors.webdataset.indexing").SqliteIndexReader
    SqliteIndexWriter = _module("flavors.webdataset.indexing").SqliteIndexWriter
    WebdatasetMeta = _module("flavors.webdataset.metadata").WebdatasetMeta
    WebdatasetInfo = _module("flavors.webdataset.structs").WebdatasetInfo
    WebdatasetSplits = _module("flavors.webdataset.structs").WebdatasetSplits
    to_json_object = _module("typed_converter").to_json_object

energon_version = importlib.metadata.version("megatron-energon")
