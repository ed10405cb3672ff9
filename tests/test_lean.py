"""The short start of the programs that run once a shard or tar."""

import subprocess
import sys

import pytest

from helpers import SCRIPTS

READ_AND_WRITE = """
import sys
sys.path.insert(0, {scripts!r})
from shardwright.lean import start_lean
start_lean("numpy", "pandas")
import {program}, {modules}
import pyarrow as pa, pyarrow.parquet as pq
from shardwright.arrow import read_parquet
from pathlib import Path
pq.write_table(pa.table({{"uid": ["a", None], "size": [1, 2]}}), {path!r}, compression="zstd")
print(read_parquet(Path({path!r}))["size"].to_pylist(), {{"numpy", "pandas", "torch"}} & set(sys.modules))
"""


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("audit_shard", "shardwright.audit, shardwright.download.triple"),
        ("convert_tar", "shardwright.convert"),
    ],
)
def test_a_job_of_a_shard_or_tar_loads_neither_numpy_nor_pandas(program, modules, tmp_path):
    path = str(tmp_path / "t.parquet")
    code = READ_AND_WRITE.format(scripts=str(SCRIPTS), program=program, modules=modules, path=path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[1, 2] set()\n", "")
