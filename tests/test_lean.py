"""The short start of the programs that run once a shard or tar."""

import subprocess
import sys

import pytest

from helpers import SCRIPTS

READ_AND_WRITE = """
import sys
sys.path.insert(0, {scripts!r})
from shardwright.lean import start_lean
start_lean({hidden})
import {program}, {modules}
import pyarrow as pa, pyarrow.parquet as pq
from shardwright.arrow import read_parquet
from pathlib import Path
pq.write_table(pa.table({{"uid": ["a", None], "size": [1, 2]}}), {path!r}, compression="zstd")
loaded = {{"numpy", "pandas", "torch", "multistorageclient"}} & set(sys.modules)
print(read_parquet(Path({path!r}))["size"].to_pylist(), loaded)
"""


@pytest.mark.parametrize(
    ("program", "hidden", "modules"),
    [
        ("audit_shard", '"numpy", "pandas"', "shardwright.audit, shardwright.download.triple"),
        ("convert_tar", '"numpy", "pandas"', "shardwright.convert"),
        ("select_samples", '"pandas"', "shardwright.plan"),
        ("index_dataset", '"numpy", "pandas"', "shardwright.dataset_check, shardwright.energon_index"),
    ],
)
def test_a_job_loads_only_what_it_uses(program, hidden, modules, tmp_path):
    """Neither what the program hides, nor torch, nor the client of object stores that Energon imports."""
    path = str(tmp_path / "t.parquet")
    names = {"scripts": str(SCRIPTS), "program": program, "hidden": hidden, "modules": modules, "path": path}
    command = [sys.executable, "-c", READ_AND_WRITE.format(**names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    loaded = "{'numpy'}" if "numpy" not in hidden else "set()"
    assert (done.stdout, done.stderr) == (f"[1, 2] {loaded}\n", "")
