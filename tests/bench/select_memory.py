"""How much memory select_samples takes as the number of audited samples grows.

    .venv/bin/python tests/bench/select_memory.py                      # 1, 4 and 16 million samples
    .venv/bin/python tests/bench/select_memory.py --samples 1000000    # one size, as JSON

Writes synthetic audits (shards of 10,000 rows, a tenth of them not to be kept), selects every sound
sample, and extrapolates the slope to 100 million. 16 million rows take 2.5 GB of disk.
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

ROWS = 10_000
SIZES = (1_000_000, 4_000_000, 16_000_000)
TARGET = 100_000_000
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def write_audits(folder: Path, num_samples: int) -> int:
    """Write the audits of all shards; return how many samples are fit to keep."""
    folder.mkdir(parents=True)
    verdict = pa.array(["bad_jpeg" if row % 10 == 0 else "keep" for row in range(ROWS)])
    numbers = pa.array(np.arange(ROWS) * 45_000)
    for shard in range(num_samples // ROWS):
        rng = np.random.default_rng(shard)
        text = rng.bytes(16 * ROWS).hex()
        uids = [text[start : start + 32] for start in range(0, len(text), 32)]
        digests = [uid + uid for uid in uids]
        columns = {
            "key": [f"{shard * ROWS + row:012d}" for row in range(ROWS)],
            "uid": uids,
            "verdict": verdict,
            "jpg_sha256": digests,
            "json_sha256": digests,
        }
        columns |= dict.fromkeys(("jpg_offset", "jpg_size", "json_offset", "json_size"), numbers)
        pq.write_table(pa.table(columns), folder / f"{shard:08d}.samples.parquet")
    (folder / "totals.json").write_text(json.dumps({"samples": num_samples}))
    return num_samples // 10 * 9


def measure(folder: Path, num_samples: int) -> dict[str, float]:
    """Select every sound sample; return the peak memory and the seconds that it took."""
    from shardwright.plan import Budget, write_plan
    from shardwright.selection import Exclusions

    num_kept = write_audits(folder / "audit", num_samples)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.process_time()
    budget = Budget(num_kept, 0.0, ROWS, {"train": -(-num_kept // ROWS), "val": 0})
    write_plan(folder / "audit", num_samples // ROWS, budget, Exclusions(), folder / "plan/summary.json")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, "before_bytes": before, "cpu_s": time.process_time() - started}


def main() -> None:
    """Measure one size, or all of them in processes of their own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    sys.path.insert(0, str(SCRIPTS))
    if args.samples:
        with tempfile.TemporaryDirectory(prefix="shardwright-select-") as folder:
            print(json.dumps(measure(args.folder or Path(folder), args.samples)))
        return
    found = []
    for num_samples in SIZES:
        command = [sys.executable, __file__, "--samples", str(num_samples)]
        cost = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        found.append((num_samples, cost["peak_bytes"]))
        rate = num_samples / cost["cpu_s"]
        print(
            f"{num_samples:>12,} samples: peak {cost['peak_bytes'] / 1e6:7.0f} MB, {rate:,.0f} a CPU second"
        )
    slope = (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])
    peak = found[-1][1] + slope * (TARGET - found[-1][0])
    print(f"{slope:.1f} bytes a sample; {TARGET:,} samples would take {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
