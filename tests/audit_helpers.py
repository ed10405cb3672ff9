"""Make small raw shards and run the audit's programs on them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from helpers import CHECKOUT, SCRIPTS, child_env, run_program
from photos import make_photo
from raw_shards import ShardFiles, make_rows, write_shard
from shardwright.audit import RawFiles, audit_shard
from shardwright.audit_sample import Expectations

COLUMNS = "url=url text=text uid=uid face_bboxes=face_bboxes"


@functools.cache
def small_photos() -> list[bytes]:
    """A few small JPEGs, made once a test session."""
    return [make_photo(seed, 64 + 8 * seed, 48) for seed in range(5)]


def small_shard(folder: Path, shard: int = 3, num_rows: int = 40, spoil=None, **options: Any) -> ShardFiles:
    """Write a shard of small pictures, about a third of whose attempts failed.

    Args:
        folder: Where to write.
        shard: Shard number.
        num_rows: Attempts.
        spoil: Called with the list of samples before they are written.
        options: For `write_shard`.
    """
    samples, failures = make_rows(shard, num_rows, photos=small_photos(), failure_rate=0.3, seed=1)
    if spoil:
        spoil(samples)
    return write_shard(folder / "raw", shard, samples, failures, **options)


def run_audit(
    files: ShardFiles, num_rows: int = 40, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run audit_shard.py on a shard; its outputs go to `audit/` beside `raw/`."""
    shard = files.tar.stem
    folder = files.tar.parents[1] / "audit"
    named = {"columns": COLUMNS, "threads": 1, **options}
    return run_program(
        "audit_shard",
        *("--shard", shard, "--tar", files.tar, "--parquet", files.parquet, "--stats", files.stats),
        *("--rows", num_rows, "--samples", folder / f"{shard}.samples.parquet"),
        *("--report", folder / f"{shard}.json"),
        *(part for name, value in named.items() for part in (f"--{name}", value)),
        check=check,
    )


def read_audit(files: ShardFiles) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the report and the rows that the audit wrote for a shard."""
    folder = files.tar.parents[1] / "audit"
    report = json.loads((folder / f"{files.tar.stem}.json").read_text())
    return report, pq.read_table(folder / f"{files.tar.stem}.samples.parquet").to_pylist()


def audit(
    files: ShardFiles, num_rows: int = 40, threads: int = 1, face_boxes: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the audit in this process; return report and rows."""
    folder = files.tar.parents[1] / "audit"
    shard = files.tar.stem
    audit_shard(
        RawFiles(shard, files.tar, files.parquet, files.stats),
        num_rows,
        folder / f"{shard}.samples.parquet",
        folder / f"{shard}.json",
        Expectations(face_boxes),
        threads,
    )
    return read_audit(files)


def peak_memory_mb(folder: Path, shards: dict[int, int]) -> list[float]:
    """Audit shards (number → rows) of `folder` in one new process; the peak memory after each."""
    # VmHWM, not getrusage: the latter counts the parent's memory at the time of the fork.
    program = (
        "import gc, re, sys; from pathlib import Path\n"
        "from audit_helpers import audit; from raw_shards import shard_files\n"
        "gc.disable()  # as start_lean does\n"
        "for shard, rows in eval(sys.argv[2]).items():\n"
        "    audit(shard_files(Path(sys.argv[1], 'raw'), shard), rows)\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text()).group(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), repr(shards)],
        capture_output=True,
        text=True,
        check=True,
        env=child_env(PYTHONPATH=f"{CHECKOUT / 'tests'}:{SCRIPTS}"),
    )
    return [int(line) / 1024 for line in done.stdout.split()]


def write_config(folder: Path, rows: int, per_shard: int, total: int) -> str:
    """Write a config (and its pin table) for `rows` rows of one parquet; return its path."""
    (folder / "pins.tsv").write_text(f"file\trows\tbytes\tsha256\nurls.parquet\t{rows}\t1\t{'0' * 64}\n")
    path = folder / "config.yaml"
    path.write_text(
        "build: t\n"
        "model: config/models/tiny.yaml\n"
        f"metadata: {{pins: pins.tsv, repo: some/urls, revision: '{'0' * 40}'}}\n"
        f"download: {{rows_per_shard: {per_shard}}}\n"
        f"samples: {{total: {total}, validation_fraction: 0}}\n"
    )
    return str(path)
