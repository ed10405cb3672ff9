"""Ours against `img2dataset.download`: same pictures, settings and cores, from loopback.

    python tests/bench/download.py [--rows 400] [--shards 2] [--processes 2] [--boxes 0.1]

Prints images a second and CPU seconds an image of both flows, with start-up (imports, as every job
pays them) and without (time from the shards' own stats; CPU less that of a run of 8 rows a shard),
and how many JPEGs are equal. The server is a process of its own; its CPU time is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
SCRIPTS = TESTS.parent / "scripts"
sys.path[:0] = [str(SCRIPTS), str(TESTS)]

OFFICIAL = """
import json, sys
from img2dataset import download
if __name__ == "__main__":
    download(**json.loads(sys.argv[1]))
"""


SIZES = ((640, 480), (800, 600), (1024, 768), (1200, 1600), (500, 500), (1920, 1280), (400, 300), (736, 1104))


def corpus(num_pictures: int) -> list[bytes]:
    """Photos of the web's sizes, nine JPEGs to one PNG."""
    from download_helpers import photo

    return [
        photo(n, *SIZES[n % len(SIZES)], **({"suffix": "PNG"} if n % 10 == 9 else {"quality": 88}))
        for n in range(num_pictures)
    ]


def serve(folder: Path) -> None:
    """Serve until standard input ends (a process of its own: its CPU time is not the flows')."""
    from image_server import ImageServer, body

    pages = {f"/{path.name}": body(path.read_bytes()) for path in (folder / "pictures").iterdir()}
    with ImageServer(pages) as server:
        print(server.url(""), flush=True)
        sys.stdin.read()


class Cost(NamedTuple):
    """Wall and CPU seconds."""

    wall: float
    cpu: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)


def timed(commands: list[list[str]], processes: int) -> Cost:
    """Run commands, `processes` at a time; return the cost of all their processes."""
    from helpers import child_env

    env = child_env(no_proxy="*", NO_ALBUMENTATIONS_UPDATE="1")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    waiting, running = list(commands), []
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(
                subprocess.Popen(
                    waiting.pop(0), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        done = [process for process in running if process.poll() is not None]
        if any(process.returncode for process in done):
            raise RuntimeError(f"a flow failed: {done[0].args}")
        running = [process for process in running if process not in done]
        time.sleep(0.02)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.monotonic() - began, cpu)


def official(folder: Path, parquet: Path, rows: int, args: argparse.Namespace) -> list[list[str]]:
    """The command of the official flow: all shards in one call."""
    shutil.rmtree(folder / "official", ignore_errors=True)
    (folder / "official").mkdir()
    options = {
        "url_list": str(parquet),
        "output_folder": str(folder / "official"),
        "input_format": "parquet",
        "output_format": "webdataset",
        "image_size": 512,
        "resize_mode": "keep_ratio_largest",
        "resize_only_if_bigger": True,
        "encode_format": "jpg",
        "processes_count": args.processes,
        "thread_count": args.threads,
        "retries": 2,
        "caption_col": "text",
        "url_col": "url",
        "bbox_col": "face_bboxes",
        "save_additional_columns": ["uid"],
        "oom_shard_count": 8,
        "number_sample_per_shard": rows,
    }
    program = folder / "official.py"
    program.write_text(OFFICIAL)
    return [[sys.executable, str(program), json.dumps(options)]]


def ours(folder: Path, parquet: Path, rows: int, args: argparse.Namespace) -> list[list[str]]:
    """Our commands: one a shard."""
    from download_helpers import COLUMNS
    from shardwright.config_check import check_against, load_schema
    from shardwright.download.settings import content_json, fetching_json

    shutil.rmtree(folder / "ours", ignore_errors=True)
    schema = load_schema(SCRIPTS.parent / "config/schema")["properties"]["download"]
    changes = {"allow_private_addresses": True, "thread_count": args.threads, "decode": args.decode}
    config, raw = check_against(changes, schema), folder / "ours/raw"
    return [
        [
            sys.executable,
            str(SCRIPTS / "download_shard.py"),
            *("--metadata", str(parquet), "--columns", COLUMNS, "--shard", f"{shard:08d}"),
            *("--start", str(shard * rows), "--stop", str((shard + 1) * rows), "--rows-per-shard", str(rows)),
            *("--content", content_json(config), "--fetching", fetching_json(config)),
            *("--tar", str(raw / f"{shard:08d}.tar"), "--parquet", str(raw / f"{shard:08d}.parquet")),
            *("--stats", str(raw / f"{shard:08d}_stats.json")),
        ]
        for shard in range(args.shards)
    ]


def busy(folder: Path, shards: int) -> float:
    """Return the seconds from the first shard's first request to the last shard's end."""
    stats = [json.loads((folder / f"{shard:08d}_stats.json").read_text()) for shard in range(shards)]
    return max(shard["end_time"] for shard in stats) - min(shard["start_time"] for shard in stats)


def equal_pictures(folder: Path, shards: int) -> tuple[int, int]:
    """Return how many samples both flows have, and how many of their JPEGs are equal."""
    from download_helpers import samples

    both = equal = 0
    for shard in range(shards):
        mine, theirs = (samples(folder / name / f"{shard:08d}.tar") for name in ("ours/raw", "official"))
        both += len(mine.keys() & theirs.keys())
        equal += sum(mine[key]["jpg"] == theirs[key]["jpg"] for key in mine.keys() & theirs.keys())
    return both, equal


def compare(folder: Path, url: str, args: argparse.Namespace) -> None:
    """Run both flows, on 8 rows a shard and on all, and print the figures."""
    from download_helpers import make_parquet

    costs: dict[tuple[str, int], Cost] = {}
    for rows in (8, args.rows):
        count = rows * args.shards
        boxes = [[[0.4, 0.2, 0.6, 0.5]] if n % 100 < 100 * args.boxes else [] for n in range(count)]
        urls = [f"{url}/{n % args.pictures}" for n in range(count)]
        parquet = make_parquet(folder / f"urls-{rows}.parquet", urls, face_bboxes=boxes)
        costs["official", rows] = timed(official(folder, parquet, rows, args), 1)
        costs["ours", rows] = timed(ours(folder, parquet, rows, args), args.processes)
    count = args.rows * args.shards
    steady = {
        name: Cost(busy(folder / sub, args.shards), (costs[name, args.rows] - costs[name, 8]).cpu)
        for name, sub in (("official", "official"), ("ours", "ours/raw"))
    }
    whole = {name: costs[name, args.rows] for name in steady}
    for label, found, cpu_images in (
        ("with start-up", whole, count),
        ("without", steady, count - 8 * args.shards),
    ):
        for name, cost in found.items():
            rate, cpu = count / cost.wall, 1000 * cost.cpu / cpu_images
            print(f"{label:14s} {name:9s} {rate:7.1f} images/s {cpu:7.2f} CPU ms/image")
        speed = found["official"].wall / found["ours"].wall
        print(f"{label:14s} ours/official: {speed:.2f} x images/s, "
              f"{found['ours'].cpu / found['official'].cpu:.2f} x CPU/image", flush=True)  # fmt: skip
    both, equal = equal_pictures(folder, args.shards)
    print(f"{equal} of {both} JPEGs equal")


def main() -> None:
    """Make the corpus, serve it, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400, help="rows of a shard")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2, help="shards at a time, in both flows")
    parser.add_argument("--threads", type=int, default=128)
    parser.add_argument("--pictures", type=int, default=80, help="different pictures")
    parser.add_argument("--boxes", type=float, default=0.0, help="share of rows with a face box")
    parser.add_argument("--decode", default="exact", choices=["exact", "reduced"])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve)
    with tempfile.TemporaryDirectory(prefix="bench-download-") as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        for number, data in enumerate(corpus(args.pictures)):
            (folder / f"pictures/{number}").write_bytes(data)
        command = [sys.executable, __file__, "--serve", str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                compare(folder, server.stdout.readline().strip(), args)
            finally:
                server.stdin.close()
    return None


if __name__ == "__main__":
    main()
