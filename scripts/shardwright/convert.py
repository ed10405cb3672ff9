"""One plan to one tar: members are copied by offset, digests are checked on the way."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright.arrow import read_parquet
from shardwright.conversation import ConversationMaker
from shardwright.errors import BuildError
from shardwright.files import replacing, write_json
from shardwright.plan_table import SCHEMA, content_digest
from shardwright.tarformat import TarWriter, tar_index

MEMBERS_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("image_size", pa.int64()),
        pa.field("conversation_size", pa.int64()),
    ]
)
PREFETCHED_SAMPLES, PREFETCHED_BYTES = 64, 1 << 20


@dataclass(frozen=True)
class Outputs:
    """The files that one conversion makes; the receipt comes last."""

    tar: Path
    members: Path
    receipt: Path

    @property
    def tar_index(self) -> Path:
        """Energon's index of the tar, beside it."""
        return self.tar.with_suffix(".tar.idx")


class RawTar:
    """A raw shard, read by offset.

    Raises:
        BuildError: No such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prefetched: set[int] = set()
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise BuildError(
                str(path),
                found="no such file",
                expected="the raw shard that was audited",
                next_step=f"restore it, or run `snakemake {path}` to download it again",
            ) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def prefetch(self, start: int, end: int) -> None:
        """Have the bytes from `start` to `end`, and those around them, read from the disk without waiting."""
        for piece in range(start // PREFETCHED_BYTES, end // PREFETCHED_BYTES + 1):
            if piece not in self._prefetched:
                self._prefetched.add(piece)
                where = piece * PREFETCHED_BYTES
                os.posix_fadvise(self._handle, where, PREFETCHED_BYTES, os.POSIX_FADV_WILLNEED)

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`; fewer at the end of the file."""
        return memoryview(os.pread(self._handle, end - start, start))


def _checked(data: memoryview, sha256: str, tar: RawTar, member: str) -> memoryview:
    """Return a member's bytes if they are what the audit saw."""
    found = hashlib.sha256(data).hexdigest()
    if found == sha256:
        return data
    raise BuildError(
        f"{tar.path} member {member}",
        found=f"{len(data)} bytes with SHA-256 {found}",
        expected=f"SHA-256 {sha256}, as audited",
        next_step=f"the shard changed after its audit: `touch {tar.path}` and run the same command again to "
        f"audit it anew, or delete it and run `snakemake {tar.path}` to download it again",
    )


class _Row(namedtuple("_Row", SCHEMA.names)):
    """One row of a plan."""

    __slots__ = ()

    @property
    def span(self) -> tuple[int, int]:
        """Where both members are in the raw tar: the JSON follows its JPG in every audited shard."""
        return self.jpg_offset, self.json_offset + self.json_size


def _read_samples(plan: pa.Table, raw: Path) -> Iterator[tuple[str, memoryview, dict[str, Any]]]:
    """Yield uid, picture and metadata of each planned sample; one shard is open at a time.

    A tar follows the order of keys and a raw shard that of download threads, so what comes next is
    prefetched by its place.
    """
    rows = map(_Row, *(plan[name].to_pylist() for name in _Row._fields))
    for shard, group in itertools.groupby(rows, key=lambda row: row.shard):
        with contextlib.closing(RawTar(raw / f"{shard}.tar")) as tar:
            ahead, samples = itertools.tee(group)
            for row in itertools.islice(ahead, PREFETCHED_SAMPLES):
                tar.prefetch(*row.span)
            for row, later in itertools.zip_longest(samples, ahead):
                if later:
                    tar.prefetch(*later.span)
                data = tar.read(*row.span)
                image = _checked(data[: row.jpg_size], row.jpg_sha256, tar, f"{row.key}.jpg")
                metadata = data[row.json_offset - row.jpg_offset :]
                metadata = _checked(metadata, row.json_sha256, tar, f"{row.key}.json")
                yield row.uid, image, json.loads(str(metadata, "utf-8"))


def convert(plan_path: Path, raw: Path, maker: ConversationMaker, outputs: Outputs) -> dict[str, Any]:
    """Write one tar, Energon's index of it, the table of its members, and the receipt.

    Args:
        plan_path: The tar's plan.
        raw: Folder of the raw shards.
        maker: Makes each sample's conversation.
        outputs: Where to write.

    Returns:
        The receipt.

    Raises:
        BuildError: A raw shard is missing, or not what was audited.
    """
    plan = read_parquet(plan_path)
    image_sizes, conversation_sizes = [], []
    with replacing(outputs.tar) as scratch, TarWriter(scratch) as writer:
        for uid, image, metadata in _read_samples(plan, raw):
            conversation = maker.make(metadata)
            writer.add(uid, image, conversation)
            image_sizes.append(len(image))
            conversation_sizes.append(len(conversation))
        sha256 = writer.finish()
    columns = [plan["uid"], writer.offsets[:-1], image_sizes, conversation_sizes]
    with replacing(outputs.members) as scratch:
        pq.write_table(pa.table(columns, schema=MEMBERS_SCHEMA), scratch, compression="zstd")
    with replacing(outputs.tar_index) as scratch:
        scratch.write_bytes(tar_index(writer.offsets))
    receipt = {
        "tar": outputs.tar.name,
        "samples": len(plan),
        "bytes": writer.size,
        "sha256": sha256,
        "content_sha256": content_digest(plan),
        **maker.settings,
    }
    write_json(outputs.receipt, receipt)
    return receipt
