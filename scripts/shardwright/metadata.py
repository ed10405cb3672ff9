"""What a metadata parquet must hold, and what its folder must not.

`parse_columns` and `refuse_unpinned` are standard library only: the Snakefile uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.errors import BuildError

if TYPE_CHECKING:
    import pyarrow as pa

NEEDED = ("url", "text", "uid")
ROLES = (*NEEDED, "face_bboxes", "sha256")
_TYPES = {
    **dict.fromkeys((*NEEDED, "sha256"), "string"),
    "face_bboxes": "list of lists of floating-point numbers",
}


def parse_columns(text: str) -> dict[str, str]:
    """Read `role=column` pairs separated by spaces.

    Raises:
        BuildError: A pair is malformed, a role unknown, doubled or missing.
    """
    columns: dict[str, str] = {}
    for pair in text.split():
        role, equals, column = pair.partition("=")
        if role not in ROLES or not equals or not column or role in columns:
            raise BuildError(
                "config key metadata.columns",
                found=f"{pair!r}",
                expected="each of the roles " + ", ".join(ROLES) + " at most once, as role=column",
                next_step="correct metadata.columns",
            )
        columns[role] = column
    missing = [role for role in NEEDED if role not in columns]
    if missing:
        raise BuildError(
            "config key metadata.columns",
            found=f"no column for {', '.join(missing)}",
            expected="a column for each of " + ", ".join(NEEDED),
            next_step="add them to metadata.columns",
        )
    return columns


def refuse_unpinned(folder: Path, names: Iterable[str]) -> None:
    """Refuse a parquet in the metadata folder that no pin names.

    Raises:
        BuildError: There is one.
    """
    pinned = set(names)
    strays = sorted(path for path in folder.glob("*.parquet") if path.stem not in pinned)
    if strays:
        raise BuildError(
            str(strays[0]),
            found=f"{len(strays)} parquet file(s) that no pin names",
            expected=f"only the {len(pinned)} pinned ones in {folder}",
            next_step="move it elsewhere, or pin it (scripts/pin_metadata.py)",
        )


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
    )


def _fits(role: str, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if role != "face_bboxes":
        return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    inner = kind.value_type if _is_list(kind) else None
    return inner is not None and _is_list(inner) and pa.types.is_floating(inner.value_type)


def open_parquet(path: Path, label: str) -> tuple[int, pa.Schema]:
    """Return the row count and the logical Arrow schema of a parquet.

    Raises:
        BuildError: It does not open as parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            return parquet.metadata.num_rows, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise BuildError(
            label,
            found=f"a file that does not open as parquet ({error})",
            expected="a parquet file",
            next_step="pin a parquet file",
        ) from error


def check_parquet(path: Path, label: str, rows: int, columns: dict[str, str]) -> None:
    """Check the row count and the columns (by their logical Arrow types) of a parquet.

    Raises:
        BuildError: It cannot be read as parquet, or differs.
    """
    num_rows, schema = open_parquet(path, label)
    if num_rows != rows:
        raise BuildError(
            label,
            found=f"{num_rows} rows",
            expected=f"{rows} rows (pinned)",
            next_step="correct the rows in the pin table (scripts/pin_metadata.py writes it)",
        )
    for role, column in columns.items():
        if column not in schema.names:
            found = f"no column {column!r}; it has {', '.join(schema.names)}"
        elif not _fits(role, schema.field(column).type):
            found = f"column {column!r} of type {schema.field(column).type}"
        else:
            continue
        raise BuildError(
            label,
            found=found,
            expected=f"the {role} in column {column!r}, type {_TYPES[role]}",
            next_step="correct metadata.columns (role=column pairs)",
        )
