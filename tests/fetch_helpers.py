"""Run fetch_metadata from tests, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetch_metadata
from helpers import SCRIPTS, child_env
from hub_server import HubServer, hub_endpoint, sha256
from shardwright.errors import BuildError

REVISION = "a" * 40
REPO = "owner/urls"
COLUMNS = "url=url text=text uid=uid face_bboxes=face_bboxes"
NUM_ROWS = 3000


def table(num_rows: int = NUM_ROWS, **changed: pa.Array | None) -> pa.Table:
    """DataComp's columns; `changed` replaces some of them, None removes one."""
    numbers = [str(row * 7919 % 104729) for row in range(num_rows)]
    columns = {
        "uid": pa.array([f"{row:032x}" for row in range(num_rows)]),
        "url": pa.array([f"http://example.invalid/{number}" for number in numbers]),
        "text": pa.array([f"picture {number}" for number in numbers]),
        "face_bboxes": pa.array([[[0.1, 0.2, 0.3, 0.4]]] * num_rows, pa.list_(pa.list_(pa.float64()))),
        **changed,
    }
    return pa.table({name: column for name, column in columns.items() if column is not None})


def parquet_bytes(data: pa.Table) -> bytes:
    """The table as an uncompressed parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


GOOD = parquet_bytes(table())


def arguments(root, data: bytes = GOOD, name: str = "a", **changed: object) -> list[object]:
    """The command line for one parquet below `root`."""
    options = {
        "source": "hub",
        "repo": REPO,
        "revision": REVISION,
        "columns": COLUMNS,
        "rows": NUM_ROWS,
        "bytes": len(data),
        "sha256": sha256(data),
        "backoff-s": 0.05,
        "parquet": root / f"metadata/{name}.parquet",
        "receipt": root / f"metadata/{name}.json",
        **{key.replace("_", "-"): value for key, value in changed.items()},
    }
    return [part for key, value in options.items() for part in (f"--{key}", value)]


def fetch(root, hub: HubServer | None, **options: object) -> str:
    """Run the program in this process; return what it printed."""
    printed = io.StringIO()
    endpoint = hub.url if hub else "http://127.0.0.1:9"
    with hub_endpoint(endpoint), contextlib.redirect_stdout(printed):
        fetch_metadata.main([str(part) for part in arguments(root, **options)])
    return printed.getvalue()


def refused(root, hub: HubServer | None, **options: object) -> str:
    """Run the program, which must refuse and leave no output; return its error."""
    with pytest.raises(BuildError) as error:
        fetch(root, hub, **options)
    assert not list(root.glob("metadata/*.parquet")) and not list(root.glob("metadata/*.json"))
    return str(error.value)


def started(root, hub: HubServer, **options: object) -> subprocess.Popen[str]:
    """Start the program as a process of its own."""
    return subprocess.Popen(
        [sys.executable, SCRIPTS / "fetch_metadata.py", *map(str, arguments(root, **options))],
        env=child_env(HF_ENDPOINT=hub.url, HF_HOME=str(root / "hf")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
