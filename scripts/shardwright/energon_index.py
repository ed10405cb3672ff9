"""Energon's metadata of the dataset, merged from what each tar's own job recorded.

Energon's `prepare_dataset` reads every header of every tar and sends a Python object a member to
one process: 3 s per 10,000 samples, whatever the cores. Here the jobs that write the tars record
where their members are, and this module hands those rows to Energon's own writer.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from shardwright.arrow import read_parquet
from shardwright.energon_files import (
    EPath,
    SqliteIndexReader,
    SqliteIndexWriter,
    WebdatasetInfo,
    WebdatasetMeta,
    WebdatasetSplits,
    collapse,
    energon_version,
    to_json_object,
)
from shardwright.errors import BuildError
from shardwright.files import replacing
from shardwright.tarformat import BLOCK, CONVERSATION_SUFFIX, IMAGE_SUFFIX, padded, sample_size

BYTES_PER_SAMPLE = 500
CACHE_KIB = 700_000
IMAGE_PART = IMAGE_SUFFIX[1:]
CONVERSATION_PART = CONVERSATION_SUFFIX[1:]

BRIDGE_LOADER = {
    "__module__": "megatron.bridge.data.energon.task_encoder_utils",
    "__class__": "ChatMLWebdataset",
    "field_map": {"imgs": IMAGE_PART, "conversation": CONVERSATION_PART},
    "subflavors": {},
}
OWN_LOADER = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {}}


class _Sample(NamedTuple):
    tar_file_id: int
    sample_key: str
    sample_index: int
    byte_offset: int
    byte_size: int


class _Part(NamedTuple):
    tar_file_id: int
    sample_index: int
    part_name: str
    content_byte_offset: int
    content_byte_size: int


def _rows(tar_file_id: int, members: Path) -> tuple[list[_Sample], list[_Part]]:
    """Return Energon's rows for one tar."""
    table = read_parquet(members)
    columns = (table[name].to_pylist() for name in ("uid", "offset", "image_size", "conversation_size"))
    samples, parts = [], []
    for index, (uid, start, image_size, conversation_size) in enumerate(zip(*columns, strict=True)):
        image = start + BLOCK
        conversation = image + padded(image_size) + BLOCK
        size = sample_size(image_size, conversation_size)
        samples.append(_Sample(tar_file_id, uid, index, start, size))
        parts.append(_Part(tar_file_id, index, IMAGE_PART, image, image_size))
        parts.append(_Part(tar_file_id, index, CONVERSATION_PART, conversation, conversation_size))
    return samples, parts


def write_sqlite(members: Iterable[Path], num_samples: int, path: Path, threads: int = 1) -> None:
    """Write Energon's `index.sqlite` from the member tables of all tars, in their order.

    It is built in the temporary folder (SQLite on a network file system may fail to lock), then
    copied and renamed.

    Raises:
        BuildError: The temporary folder is too small, or a sample key comes twice.
    """
    needed = num_samples * BYTES_PER_SAMPLE
    with tempfile.TemporaryDirectory(prefix="shardwright-index-") as folder:
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise BuildError(
                folder,
                found=f"{free:,} bytes free",
                expected=f"about {needed:,} bytes to build the index of {num_samples:,} samples",
                next_step="set TMPDIR to a local disk with more room",
            )
        local = Path(folder) / path.name
        _fill_sqlite(SqliteIndexWriter(EPath(local)), members, threads)
        with replacing(path) as scratch:
            shutil.copyfile(local, scratch)


def _fill_sqlite(writer: SqliteIndexWriter, members: Iterable[Path], threads: int) -> None:
    for pragma in (
        "journal_mode = OFF",
        "synchronous = OFF",
        f"cache_size = -{CACHE_KIB}",
        f"threads = {threads}",
    ):
        writer.db.execute(f"PRAGMA {pragma}")
    for tar_file_id, path in enumerate(members):
        samples, parts = _rows(tar_file_id, path)
        writer.append_samples(samples)
        writer.append_parts(parts)
    writer.close()


def _write_yaml(path: Path, value: Any) -> None:
    with replacing(path) as scratch:
        scratch.write_text(yaml.safe_dump(value, sort_keys=False))


def write_declarations(meta: Path, receipts: list[dict[str, Any]], splits: dict[str, list[str]]) -> None:
    """Write all of `.nv-meta` but the database: counts, splits, id, the two loader declarations."""
    _write_yaml(meta / "dataset.yaml", BRIDGE_LOADER)
    _write_yaml(meta / "shardwright.yaml", OWN_LOADER)
    collapsed = {split: collapse(names, keep_order=True) for split, names in splits.items()}
    _write_yaml(meta / "split.yaml", to_json_object(WebdatasetSplits(split_parts=collapsed)))
    content = json.dumps([[receipt["tar"], receipt["sha256"]] for receipt in receipts])
    with replacing(meta / "index.uuid") as scratch:
        scratch.write_text(str(uuid.uuid5(uuid.NAMESPACE_OID, content)))
    counts = {receipt["tar"]: receipt["samples"] for receipt in receipts}
    info = WebdatasetInfo(energon_version=energon_version, shard_counts=counts)
    with replacing(meta / ".info.json") as scratch:
        scratch.write_text(json.dumps(to_json_object(info), indent=2))


def check_with_energon(dataset: Path, receipts: list[dict[str, Any]], splits: dict[str, list[str]]) -> None:
    """Read the metadata back with Energon's own reader and compare it with the receipts.

    Raises:
        BuildError: Energon sees other tars or other counts.
    """
    expected = {receipt["tar"]: receipt["samples"] for receipt in receipts}
    found: dict[str, int] = {}
    for split in splits:
        meta = WebdatasetMeta.from_config(EPath(dataset), split_part=split)
        found |= {shard.name: shard.count for shard in meta.shards}
    with SqliteIndexReader(EPath(dataset / ".nv-meta/index.sqlite")) as reader:
        num_indexed = reader.get_sample_count()
    if found != expected or num_indexed != sum(expected.values()):
        wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise BuildError(
            str(dataset / ".nv-meta"),
            found=f"{num_indexed} samples indexed, other counts for {wrong or 'no tar'}",
            expected=f"{sum(expected.values())} samples in {len(expected)} tars",
            next_step="report this as a fault of index_dataset: its output disagrees with Energon's reader",
        )
