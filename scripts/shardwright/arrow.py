"""Read a parquet without the layers that pyarrow would import for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one parquet in this thread; `pyarrow.parquet.read_table` imports the dataset layer first.

    Columns that the file lacks are left out.

    Raises:
        OSError, pa.ArrowInvalid: No such file, or not a parquet.
    """
    with pq.ParquetFile(path) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)
