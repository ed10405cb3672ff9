"""How fast audit, select, convert and index are, against a plain serial pass and a plain copy.

    .venv/bin/python tests/bench/dataset.py [--samples 20000] [--shards 2] [--rounds 3] [--folder DIR]

Makes raw shards of photo-like 512-px JPEGs of about 38 KB, then runs the programs as the workflow
does, one process a shard or tar, on one core and on two. The plain serial pass is one process that
reads with `tarfile`, decodes every JPEG in full with Pillow and writes with `tarfile`; it is also run
once a shard, side by side, which tells how much of a core the second core of the machine is. Every process
is pinned to the cores of its round. Ratios are of the same round, as clocks drift. Compare ratios, not
seconds, between machines. Takes two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
SCRIPTS = TESTS.parent / "scripts"
sys.path[:0] = [str(SCRIPTS), str(TESTS)]

REPO, REVISION, PROMPT = "someone/urls", "0" * 40, "Describe this image."
COLUMNS = "url=url text=text uid=uid face_bboxes=face_bboxes"


def make_raw(folder: Path, num_samples: Path, num_shards: Path) -> None:
    """Write the raw shards, in the order of download threads."""
    from photos import make_photos
    from raw_shards import make_rows, write_shard

    photos = make_photos(100, seed=7)
    counts = int(str(num_samples)), int(str(num_shards))
    rows = counts[0] // counts[1]
    for shard in range(counts[1]):
        samples, _ = make_rows(shard, rows, photos=photos, rows_per_shard=10_000, seed=7)
        write_shard(folder, shard, samples)


class Cost(NamedTuple):
    """What a stage took: seconds by the clock, seconds of CPU, and the peak MiB of one process."""

    wall: float
    cpu: float
    peak: float


def run_all(commands: Sequence[Sequence[str]], cores: int) -> Cost:
    """Run the commands, `cores` at a time on as many cores."""

    def run(command: Sequence[str]) -> None:
        log = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        pid = os.posix_spawn(sys.executable, [sys.executable, *command], ENV, file_actions=[log])
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"failed: {' '.join(command)}")
        peaks.append(usage.ru_maxrss / 1024)
        cpu.append(usage.ru_utime + usage.ru_stime)

    peaks: list[float] = []
    cpu: list[float] = []
    os.sched_setaffinity(0, sorted(ALL_CORES)[:cores])
    os.sync()  # what the stage before left to be written is not this one's to wait for
    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(run, commands))
    wall = time.perf_counter() - started
    os.sched_setaffinity(0, ALL_CORES)
    return Cost(wall, sum(cpu), max(peaks))


def stages(raw: Path, out: Path, num_samples: int, num_shards: int, cores: int) -> list[tuple]:
    """The stages: name and a function that returns its commands."""
    per_tar = num_samples // num_shards

    def audit() -> list[list[str]]:
        return [
            [
                str(SCRIPTS / "audit_shard.py"),
                *("--shard", shard, "--tar", str(raw / f"{shard}.tar")),
                *("--parquet", str(raw / f"{shard}.parquet"), "--stats", str(raw / f"{shard}_stats.json")),
                *("--rows", str(per_tar), "--columns", COLUMNS),
                *("--samples", str(out / f"audit/{shard}.samples.parquet")),
                *("--report", str(out / f"audit/{shard}.json")),
            ]
            for shard in (f"{number:08d}" for number in range(num_shards))
        ]

    def totals() -> list[list[str]]:
        return [
            [
                str(SCRIPTS / "audit_totals.py"),
                *("--folder", str(out / "audit"), "--num-shards", str(num_shards)),
                *("--failures", str(out / "audit/failures.tsv"), "--totals", str(out / "audit/totals.json")),
            ]
        ]

    def select() -> list[list[str]]:
        return [
            [
                str(SCRIPTS / "select_samples.py"),
                *("--audit", str(out / "audit"), "--num-shards", str(num_shards)),
                *("--total", str(num_samples), "--validation-fraction", "0", "--per-tar", str(per_tar)),
                *("--num-train", str(num_shards), "--num-val", "0"),
                *("--summary", str(out / "plan/summary.json")),
            ]
        ]

    def convert() -> list[list[str]]:
        return [
            [
                str(SCRIPTS / "convert_tar.py"),
                *("--plan", str(out / f"plan/train-{part}.parquet"), "--raw", str(raw)),
                *("--repo", REPO, "--revision", REVISION, "--prompt", PROMPT),
                *("--tar", str(out / f"energon/train-shard-{part}.tar")),
                *("--members", str(out / f"index/train-{part}.parquet")),
                *("--receipt", str(out / f"index/train-{part}.json")),
            ]
            for part in (f"{number:06d}" for number in range(num_shards))
        ]

    def index() -> list[list[str]]:
        return [
            [
                str(SCRIPTS / "index_dataset.py"),
                *("--plan", str(out / "plan/summary.json"), "--dataset", str(out / "energon")),
                *("--receipt", str(out / "index/index.json"), "--threads", str(cores)),
            ]
        ]

    return list(zip(STAGES, (audit, totals, select, convert, index), strict=True))


def plain_serial(out: Path, *tars: Path) -> None:
    """Read, decode in full, write: one process, the standard library and Pillow."""
    from PIL import Image

    for path in tars:
        groups: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, suffix = member.name.partition(".")
                groups.setdefault(key, {})[suffix] = archive.extractfile(member).read()
        with tarfile.open(out / path.name, "w", format=tarfile.GNU_FORMAT) as archive:
            for key in sorted(groups):
                jpg, metadata = groups[key]["jpg"], json.loads(groups[key]["json"])
                with Image.open(io.BytesIO(jpg)) as image:
                    image.load()
                answer = {"role": "assistant", "content": [{"type": "text", "text": metadata["caption"]}]}
                conversation = json.dumps({"conversation": [answer], "source": metadata}).encode()
                for suffix, data in ((".image.jpg", jpg), (".conversation.json", conversation)):
                    info = tarfile.TarInfo(metadata["uid"] + suffix)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def read_through(path: Path) -> None:
    """Read a file, so that it is in memory."""
    with path.open("rb") as stream:
        while stream.read(1 << 20):
            pass


def plain_copy(source: Path, target: Path) -> None:
    """Copy a file in 1 MiB pieces and see it on the disk."""
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def plain_prepare(out: Path) -> None:
    """Energon's own preparation of the dataset."""
    import megatron.energon.flavors.webdataset.prepare as prepare

    names = sorted(path.name for path in out.glob("*.tar"))
    prepare.WebdatasetPreparator.prepare_dataset(
        out, names, split_parts_patterns=[("train", "train-shard-.*")], workers=os.cpu_count()
    )


def child(what: str, *args: object) -> list[str]:
    """The command that runs one of the functions above in a process of its own."""
    return [__file__, "--child", what, *map(str, args)]


CHILDREN: dict[str, Callable[..., None]] = {
    "raw": make_raw,
    "serial": plain_serial,
    "copy": plain_copy,
    "prepare": plain_prepare,
}
SERIAL, COPY, PREPARE = "plain serial pass", "plain copy", "Energon's prepare"
STAGES = ("audit", "totals", "select", "convert", "index")
ALL_CORES = os.sched_getaffinity(0)
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


class Rounds:
    """What each command took in each round: the clock of a shared machine drifts by half within minutes."""

    def __init__(self, num_samples: int, raw: list[Path], scratch: Path) -> None:
        self.num_samples, self.raw, self.scratch = num_samples, raw, scratch
        self._costs: dict[tuple[str, int], list[Cost]] = {}

    def run(self, name: str, cores: int, commands: Sequence[Sequence[str]]) -> None:
        """Run the commands, with the raw tars in memory and nothing in the scratch folder, and say so."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        for path in self.raw:
            read_through(path)
        cost = run_all(commands, cores)
        self._costs.setdefault((name, cores), []).append(cost)
        print(f"  {name} on {cores}: {cost.wall:.2f} s", file=sys.stderr, flush=True)

    def costs(self, cores: int, *names: str) -> list[Cost]:
        """What the commands took together, round by round."""
        rounds = zip(*(self._costs[name, cores] for name in names), strict=True)
        return [
            Cost(*(sum(cost[i] for cost in one) for i in range(2)), max(cost.peak for cost in one))
            for one in rounds
        ]

    def show(self, label: str, cores: int, *names: str) -> None:
        """Print a line of the table: the least time of all rounds, the highest peak."""
        costs = self.costs(cores, *names or (label,))
        wall, cpu = (min(cost[i] for cost in costs) for i in range(2))
        peak = max(cost.peak for cost in costs)
        print(f"{label:<22}{wall:8.2f}{cpu:8.2f}{self.num_samples / wall:10.0f}{peak:8.0f}")


def show_ratio(name: str, costs: list[Cost], references: list[Cost]) -> None:
    """Print how many times the reference's time fits into the costs of the same round: median and range."""
    clock, cpu = (
        sorted(reference[i] / cost[i] for cost, reference in zip(costs, references, strict=True))
        for i in range(2)
    )
    by_clock = f"{statistics.median(clock):.2f}x by the clock ({clock[0]:.2f} to {clock[-1]:.2f})"
    print(f"  {name}: {by_clock}, {statistics.median(cpu):.2f}x by CPU")


def run_round(folder: Path, tars: list[Path], cores: int, rounds: Rounds) -> None:
    """Run all stages on `cores` cores, with their references beside them."""
    out, prepared = folder / f"out-{cores}", folder / "prepared"
    shutil.rmtree(out, ignore_errors=True)
    rounds.run(COPY, cores, [child("copy", path, rounds.scratch / path.name) for path in tars])
    for name, commands in stages(tars[0].parent, out, rounds.num_samples, len(tars), cores):
        rounds.run(name, cores, commands())
    shutil.copytree(out / "energon", prepared, ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    rounds.run(PREPARE, cores, [child("prepare", prepared)])
    shutil.rmtree(prepared)


def show_cores(rounds: Rounds, cores: int) -> None:
    """Print the table and the ratios of one number of cores."""
    print(f"on {cores} core(s)")
    for name in (*STAGES, COPY, PREPARE):
        rounds.show(name, cores)
    rounds.show("all stages", cores, *STAGES)
    show_ratio(f"all stages against {SERIAL}", rounds.costs(cores, *STAGES), rounds.costs(1, SERIAL))
    for name, reference in (("convert", COPY), ("index", PREPARE)):
        costs, references = rounds.costs(cores, name), rounds.costs(cores, reference)
        show_ratio(f"{name} against {reference}", costs, references)


def bench(folder: Path, num_samples: int, num_shards: int, num_rounds: int) -> None:
    """Run every round and print the table and the ratios."""
    raw, scratch = folder / "raw", folder / "scratch"
    if not raw.is_dir():
        run_all([child("raw", raw, num_samples, num_shards)], len(ALL_CORES))
    tars = sorted(raw.glob("*.tar"))
    rounds = Rounds(num_samples, tars, scratch)
    for number in range(num_rounds):
        print(f"round {number + 1} of {num_rounds}", file=sys.stderr)
        rounds.run(SERIAL, 2, [child("serial", scratch, path) for path in tars])
        run_round(folder, tars, 2, rounds)
        rounds.run(SERIAL, 1, [child("serial", scratch, *tars)])
        run_round(folder, tars, 1, rounds)
    mean = sum(path.stat().st_size for path in tars) / num_samples
    print(f"{num_samples} samples in {num_shards} raw shards, {mean / 1000:.1f} KB a sample with headers")
    print(f"best of {num_rounds} rounds".ljust(22) + f"{'clock s':>8}{'CPU s':>8}{'samples/s':>10}{'MiB':>8}")
    rounds.show(SERIAL, 1)
    rounds.show("one a core, on 2", 2, SERIAL)
    show_ratio("two of it side by side against one", rounds.costs(2, SERIAL), rounds.costs(1, SERIAL))
    for cores in (1, 2):
        show_cores(rounds, cores)
    digests = [
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("energon/*.tar"))]
        for out in sorted(folder.glob("out-*"))
    ]
    print("tars equal at every number of cores:", all(digest == digests[0] for digest in digests))


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--shards", type=int, default=2, help="raw shards, and tars")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median ratio counts")
    parser.add_argument("--folder", type=Path, help="keep raw shards and outputs here")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        CHILDREN[args.child[0]](*map(Path, args.child[1:]))
        return
    with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as folder:
        bench(args.folder or Path(folder), args.samples, args.shards, args.rounds)


if __name__ == "__main__":
    main()
