"""The columns of a plan: everything that the conversion of one tar needs to know."""

from __future__ import annotations

import hashlib

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("uid", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("key", pa.string()),
        pa.field("jpg_offset", pa.int64()),
        pa.field("jpg_size", pa.int64()),
        pa.field("jpg_sha256", pa.string()),
        pa.field("json_offset", pa.int64()),
        pa.field("json_size", pa.int64()),
        pa.field("json_sha256", pa.string()),
    ]
)
CONTENT_COLUMNS = ("uid", "jpg_sha256", "json_sha256")


def content_digest(plan: pa.Table) -> str:
    """Return a digest that is equal for two plans exactly when their tars would be equal.

    It covers the ids, the bytes of the pictures and of the metadata, and their order; not where
    in the raw shards they are, which differs between two downloads of the same samples.
    """
    digest = hashlib.sha256()
    for name in CONTENT_COLUMNS:
        digest.update("".join(plan[name].to_pylist()).encode())
    return digest.hexdigest()
