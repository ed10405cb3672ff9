"""PyArrow without what it would import besides: half a second of CPU in every job of a shard or tar."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class _NoPandas(MetaPathFinder):
    """Answers `import pandas` as if it were not installed."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden from this program", name=name)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, as it does for the first array it makes.

    For programs that use no pandas; it is hidden from the whole process.
    """
    sys.meta_path.insert(0, _NoPandas())


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one parquet in this thread; `pyarrow.parquet.read_table` imports the dataset layer first.

    Columns that the file lacks are left out.

    Raises:
        OSError, pa.ArrowInvalid: No such file, or not a parquet.
    """
    with pq.ParquetFile(path) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)
