"""How the database of the dataset's index grows: seconds and peak memory from one tar to a thousand.

    .venv/bin/python tests/bench/index_scale.py [--tars 1 10 100 1000]

Writes the member tables that the jobs of so many tars leave behind, 10,000 samples each, and merges
them into Energon's `index.sqlite`. A thousand tars take 9 GB of temporary disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PER_TAR = 10_000
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def write_members(folder: Path, num_tars: int) -> list[Path]:
    """Write the member tables of `num_tars` tars with random uids; return their paths."""
    from shardwright.convert import MEMBERS_SCHEMA
    from shardwright.tarformat import sample_size

    paths = []
    for tar in range(num_tars):
        rng = np.random.default_rng(tar)
        text = rng.bytes(16 * PER_TAR).hex()
        image, conversation = rng.integers(20_000, 60_000, PER_TAR), rng.integers(400, 900, PER_TAR)
        sizes = sample_size(image, conversation)
        columns = [
            [text[start : start + 32] for start in range(0, len(text), 32)],
            np.cumsum(sizes) - sizes,
            image,
            conversation,
        ]
        paths.append(folder / f"train-{tar:06d}.parquet")
        pq.write_table(pa.table(columns, schema=MEMBERS_SCHEMA), paths[-1], compression="zstd")
    return paths


def measure(num_tars: int, threads: int) -> dict[str, float]:
    """Merge the tables of `num_tars` tars; return seconds by the clock, CPU seconds, peak bytes."""
    from shardwright.energon_index import write_sqlite
    from shardwright.lean import start_lean

    start_lean("pandas")
    with tempfile.TemporaryDirectory(prefix="shardwright-index-") as name:
        folder = Path(name)
        members = write_members(folder, num_tars)
        wall, cpu = time.perf_counter(), time.process_time()
        write_sqlite(members, num_tars * PER_TAR, folder / "index.sqlite", threads)
        return {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "disk_bytes": (folder / "index.sqlite").stat().st_size,
        }


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tars", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(SCRIPTS))
    if args.child:
        print(json.dumps(measure(args.tars[0], args.threads)))
        return
    print(f"{'samples':>12}{'clock s':>9}{'CPU s':>8}{'us/sample':>11}{'peak MB':>9}{'file MB':>9}")
    for num_tars in args.tars:
        command = [
            sys.executable,
            __file__,
            "--child",
            "--tars",
            str(num_tars),
            "--threads",
            str(args.threads),
        ]
        cost = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        num_samples = num_tars * PER_TAR
        each = cost["cpu_s"] / num_samples * 1e6
        print(
            f"{num_samples:>12,}{cost['wall_s']:9.1f}{cost['cpu_s']:8.1f}{each:11.2f}"
            f"{cost['peak_bytes'] / 1e6:9.0f}{cost['disk_bytes'] / 1e6:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
