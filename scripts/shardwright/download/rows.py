"""Rows of the metadata parquet, as a worker wants them: cleaned, in one Arrow file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright.captions import clean_caption
from shardwright.download.boxes import BadBoxes, clean_boxes
from shardwright.download.hashes import ANNOUNCED, read_hash
from shardwright.errors import BuildError

_BATCH_ROWS = 4096
TABLE_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string()),
        pa.field("face_bboxes", pa.list_(pa.list_(pa.float64()))),
        pa.field("caption", pa.string()),
        pa.field("url", pa.string()),
    ]
)

_ANNOUNCED_FIELD = pa.field(
    ANNOUNCED, pa.struct([TABLE_SCHEMA.field("face_bboxes"), pa.field("sha256", pa.string())])
)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)


def _check_types(schema: pa.Schema, columns: dict[str, str], path: Path) -> None:
    for role, name in columns.items():
        if name not in schema.names:
            found, expected = f"no column {name}", f"the {role} column that metadata.columns names"
        elif role != "face_bboxes" and not _is_text(schema.field(name).type):
            found, expected = f"column {name} of type {schema.field(name).type}", "text (a string column)"
        elif role == "face_bboxes" and not pa.types.is_nested(schema.field(name).type):
            found, expected = f"column {name} of type {schema.field(name).type}", "a list of boxes"
        else:
            continue
        raise BuildError(
            str(path),
            found=found,
            expected=expected,
            next_step=f"correct metadata.columns; the file has {', '.join(schema.names)}",
        )


def read_rows(path: Path, start: int, stop: int, columns: dict[str, str]) -> pa.Table:
    """Return rows `[start, stop)` with one column a role, text as bytes; never the whole file.

    Raises:
        BuildError: The file is shorter, or a column is missing or of the wrong type.
    """
    pieces = []
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        _check_types(file.schema_arrow, columns, path)
        names = list(columns.values())
        first = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if first < stop and first + rows > start:
                position = first
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                    low, high = max(start - position, 0), min(stop - position, batch.num_rows)
                    if low < high:
                        pieces.append(batch.slice(low, high - low))
                    position += batch.num_rows
                    if position >= stop:
                        break
            first += rows
    table = pa.Table.from_batches(pieces) if pieces else pa.table({name: [] for name in names})
    if table.num_rows != stop - start:
        raise BuildError(
            str(path),
            found=f"{first} rows",
            expected=f"at least {stop}",
            next_step="fetch the parquet again (it is not the pinned one), or correct the pin table",
        )
    return table.select(names).rename_columns(list(columns))


def _texts(column: pa.ChunkedArray) -> list[bytes | None]:
    binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    return column.cast(binary).to_pylist()


def _plain(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")


def clean_rows(table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Apply the rules for captions and face boxes.

    Boxes that must be refused stay as they are, so that the worker refuses the row by name.

    Returns:
        The table in img2dataset's column order (and ANNOUNCED, if a column has the role sha256),
        and counts of what was changed.
    """
    counts: Counter[str] = Counter()
    captions = []
    for text in _texts(table["text"]):
        caption = clean_caption(text) or ""
        counts["captions_null"] += text is None
        counts["captions_cleaned"] += text is not None and caption.encode() != text
        captions.append(caption)
    given = (
        table["face_bboxes"].to_pylist() if "face_bboxes" in table.column_names else [None] * len(captions)
    )
    boxes = [_clean_or_keep(value, counts) for value in given]
    columns = {
        "uid": [_plain(value) for value in _texts(table["uid"])],
        "face_bboxes": boxes,
        "caption": captions,
        "url": [_plain(value) or "" for value in _texts(table["url"])],
    }
    cleaned = pa.Table.from_pydict(columns, schema=TABLE_SCHEMA)
    if "sha256" in table.column_names:
        hashes = [read_hash(_plain(value), counts) for value in _texts(table["sha256"])]
        pairs = [{"face_bboxes": faces, "sha256": value} for faces, value in zip(boxes, hashes, strict=True)]
        cleaned = cleaned.append_column(_ANNOUNCED_FIELD, pa.array(pairs, _ANNOUNCED_FIELD.type))
    return cleaned, {name: counts[name] for name in sorted(counts)}


def _clean_or_keep(value: Any, counts: Counter[str]) -> Any:
    try:
        cleaned = clean_boxes(value)
    except BadBoxes:
        counts["boxes_refused"] += 1
        return value
    counts["boxes_null"] += value is None
    counts["boxes_repaired"] += value is not None and cleaned != value
    return cleaned


def write_table(table: pa.Table, path: Path) -> None:
    """Write the Arrow file that img2dataset's Downloader reads."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
