"""Peak memory of one shard job, supervisor and worker, at several numbers of rows.

    python tests/bench/download_memory.py [--rows 250 10000] [--small]

Photos of the web's sizes from a loopback server, 128 threads, the settings of the DataComp build.
The worker's memory may grow with the rows only by their text; what pictures need is bounded by the
threads (at most twice as many bodies wait, one is decoded at a time).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "scripts"), str(TESTS), str(TESTS / "bench")]


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


def children(pid: int) -> list[int]:
    """Return the child processes."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def run(command: list[str]) -> tuple[float, float, float]:
    """Run the job; return the peaks of supervisor and worker in MB, and the seconds it took."""
    from helpers import child_env

    began, peaks = time.monotonic(), [0.0, 0.0]
    job = subprocess.Popen(command, env=child_env(no_proxy="*"), stdout=subprocess.DEVNULL)
    while job.poll() is None:
        peaks[0] = max(peaks[0], peak_mb(job.pid))
        peaks[1] = max([peaks[1], *map(peak_mb, children(job.pid))])
        time.sleep(0.1)
    if job.returncode:
        raise RuntimeError("the shard failed")
    return *peaks, time.monotonic() - began


def main() -> None:
    """Make the corpus, serve it, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[250, 10_000])
    parser.add_argument("--pictures", type=int, default=80, help="different pictures")
    parser.add_argument("--small", action="store_true", help="photos of 400 x 300 alone: what the rows need")
    args = parser.parse_args()
    import download

    from download_helpers import make_parquet

    if args.small:
        download.SIZES = ((400, 300),)
    flow = argparse.Namespace(threads=128, decode="exact", shards=1)
    with tempfile.TemporaryDirectory(prefix="bench-download-") as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        for number, data in enumerate(download.corpus(args.pictures)):
            (folder / f"pictures/{number}").write_bytes(data)
        command = [sys.executable, str(TESTS / "bench/download.py"), "--serve", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().strip()
                for rows in args.rows:
                    urls = [f"{url}/{n % args.pictures}" for n in range(rows)]
                    parquet = make_parquet(folder / f"urls-{rows}.parquet", urls)
                    supervisor, worker, seconds = run(download.ours(folder, parquet, rows, flow)[0])
                    print(
                        f"{rows:7,} rows: worker {worker:.0f} MB, supervisor {supervisor:.0f} MB, "
                        f"together {worker + supervisor:.0f} MB ({seconds:.0f} s)",
                        flush=True,
                    )
            finally:
                server.stdin.close()


if __name__ == "__main__":
    main()
