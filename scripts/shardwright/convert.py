"""One plan to one tar: members are copied by offset, digests are checked on the way."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright.conversation import ConversationMaker
from shardwright.errors import BuildError
from shardwright.files import replacing, write_json
from shardwright.plan_table import content_digest
from shardwright.tarformat import TarWriter, tar_index

MEMBERS_SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("image_size", pa.int64()),
        pa.field("conversation_size", pa.int64()),
    ]
)


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


@dataclass
class RawTar:
    """A raw shard, read by offset."""

    path: Path
    _handle: int = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._handle = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            raise BuildError(
                str(self.path),
                found="no such file",
                expected="the raw shard that was audited",
                next_step=f"restore it, or run `snakemake {self.path}` to download it again",
            ) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def read(self, offset: int, size: int, sha256: str, member: str) -> bytes:
        """Return a member's bytes.

        Raises:
            BuildError: They are not what the audit saw.
        """
        data = os.pread(self._handle, size, offset)
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise BuildError(
                f"{self.path} member {member}",
                found=f"{len(data)} bytes at {offset} with SHA-256 {found}",
                expected=f"{size} bytes with SHA-256 {sha256}, as audited",
                next_step=f"the shard changed after its audit: delete it and its two companions "
                f"({self.path.stem}.parquet, {self.path.stem}_stats.json) and run the same command again",
            )
        return data


def _read_samples(plan: pa.Table, raw: Path) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield uid, picture and metadata of each planned sample; shards are opened one at a time."""
    with ExitStack() as stack:
        current = None
        shard = None
        for row in zip(*(column.to_pylist() for column in plan.columns), strict=True):
            sample = dict(zip(plan.column_names, row, strict=True))
            if sample["shard"] != current:
                stack.close()
                current = sample["shard"]
                shard = RawTar(raw / f"{current}.tar")
                stack.callback(shard.close)
            key = sample["key"]
            image = shard.read(sample["jpg_offset"], sample["jpg_size"], sample["jpg_sha256"], f"{key}.jpg")
            metadata = shard.read(
                sample["json_offset"], sample["json_size"], sample["json_sha256"], f"{key}.json"
            )
            yield sample["uid"], image, json.loads(metadata)


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
    plan = pq.read_table(plan_path)
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
    }
    write_json(outputs.receipt, receipt)
    return receipt
