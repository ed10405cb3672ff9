"""One shard from rows of a parquet to a published triple, with every failed attempt on record."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardwright.download.fetch import Fetcher
from shardwright.download.hashes import ANNOUNCED, check_hashes, summary_line
from shardwright.download.job import OOM_SHARD_COUNT, WRITE_FAILED, Job
from shardwright.download.network import check_network
from shardwright.download.people import LiveLine, dominant_advice, summarise
from shardwright.download.rows import write_table
from shardwright.download.settings import Content, Fetching
from shardwright.download.supervise import run_worker
from shardwright.download.triple import (
    Triple,
    complete_stats,
    count_outcomes,
    find_disagreement,
    publish,
    read_outcomes,
)
from shardwright.errors import BuildError
from shardwright.files import read_json, scratch_folder, write_json

_LOG_TAIL_CHARS = 4000
# A 512-pixel JPEG with its text has about 42 kB; ask for a little more before starting.
_FREE_BYTES_PER_ROW = 48_000


@dataclass(frozen=True)
class Plan:
    """What to download, how, and where to.

    Args:
        shard: The shard id as file names carry it.
        rows_per_shard: Decides the width of the keys, as in img2dataset.
        target: Where the triple belongs; `raw/` below the build root.
        content: What the shard holds.
        fetching: How URLs are fetched.
        python: Command of the interpreter that downloads.
    """

    shard: str
    rows_per_shard: int
    target: Triple
    content: Content
    fetching: Fetching
    python: Sequence[str] = (sys.executable,)

    @property
    def root(self) -> Path:
        """The build root."""
        return self.target.tar.parent.parent

    @property
    def evidence(self) -> Path:
        """The folder for what is known of failed attempts; Snakemake does not own it."""
        return self.root / "logs" / "download_shard" / f"{self.shard}.attempts"

    def key(self, row: int) -> str:
        """Return img2dataset's key for a row of this shard."""
        digits = math.ceil(math.log10(self.rows_per_shard))
        return f"{int(self.shard) * 10**digits + row:0{OOM_SHARD_COUNT + digits}d}"


@dataclass(frozen=True)
class Made:
    """A worker's finished triple in the scratch folder, found to agree with itself."""

    triple: Triple
    outcomes: list[dict[str, Any]]
    told: dict[str, Any]


def keep_evidence(plan: Plan, reason: str, facts: dict[str, Any]) -> Path:
    """Write down why an attempt failed; earlier attempts keep their files."""
    number = len(list(plan.evidence.glob("*.json"))) + 1
    path = plan.evidence / f"{number:03d}.json"
    write_json(path, {"shard": plan.shard, "reason": reason, **facts})
    return path


def wait_out_outage(plan: Plan) -> None:
    """After a failed attempt, wait until download.outage_wait_s have passed since."""
    stamps = [path.stat().st_mtime for path in plan.evidence.glob("*.json")]
    pause = max(stamps, default=0.0) + plan.fetching.outage_wait_s - time.time()
    if stamps and 0 < pause <= plan.fetching.outage_wait_s:
        print(f"{plan.shard}: an attempt failed; waiting {pause:.0f} s (download.outage_wait_s)", flush=True)
        time.sleep(pause)


def _check_space(folder: Path, rows: int) -> None:
    free, needed = shutil.disk_usage(folder).free, rows * _FREE_BYTES_PER_ROW
    if free < needed:
        raise BuildError(
            str(folder),
            found=f"{free / 1e6:.0f} MB free",
            expected=f"{needed / 1e6:.0f} MB for {rows} rows",
            next_step="free some space, or set root to a larger disk; finished shards stay valid",
        )


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL_CHARS:] if log.exists() else ""


def _attempt(
    plan: Plan, table: pa.Table, row_numbers: list[int] | None, folder: Path
) -> tuple[Made | None, str, int]:
    """Run one worker; return what it made, or why it made nothing, and its exit status."""
    work = folder / "work"
    work.mkdir()
    write_table(table, folder / "rows.arrow")
    job = Job(
        shard_id=int(plan.shard),
        rows_per_shard=plan.rows_per_shard,
        table=str((folder / "rows.arrow").resolve()),
        folder=str(work.resolve()),
        content=plan.content,
        fetching=plan.fetching,
        row_numbers=row_numbers,
        announced=ANNOUNCED in table.column_names,
    )
    job_file = (folder / "job.json").resolve()
    job.save(job_file)
    live = LiveLine(plan.shard, table.num_rows, plan.fetching.log_interval_s)
    status, problem = run_worker(plan.python, job_file, folder / "worker.log", plan.fetching, live)
    triple = Triple.inside(work, job.stem)
    rows = range(table.num_rows) if row_numbers is None else row_numbers
    problem = problem or find_disagreement(triple, sorted(plan.key(row) for row in rows))
    if problem:
        return None, problem, status
    told = read_json(work / "told.json")
    return Made(triple, read_outcomes(triple.parquet), told), "", status


@contextmanager
def downloaded(plan: Plan, table: pa.Table, row_numbers: list[int] | None = None) -> Iterator[Made]:
    """Yield what a worker made of `table`; it lies in a scratch folder that is removed afterwards.

    Args:
        plan: What and how.
        table: Cleaned rows.
        row_numbers: The place of each row in the shard, where it is not 0, 1, 2…

    Raises:
        BuildError: No attempt gave a triple that agrees with itself, or the disk is full.
    """
    scratch = plan.root / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    for stale in scratch.glob(f".{plan.shard}.*.part"):
        shutil.rmtree(stale, ignore_errors=True)
    _check_space(scratch, table.num_rows)
    problem = ""
    for number in range(1, plan.fetching.attempts + 1):
        with scratch_folder(scratch, plan.shard) as folder:
            made, problem, status = _attempt(plan, table, row_numbers, folder)
            if made:
                yield made
                return
            log = _tail(folder / "worker.log")
        evidence = keep_evidence(plan, problem, {"worker_log": log})
        print(f"{plan.shard}: attempt {number} failed: {problem} ({evidence})", flush=True)
        if status == WRITE_FAILED:
            raise _disk_full(plan, log)
    raise BuildError(
        f"shard {plan.shard}",
        found=f"{problem}, in each of {plan.fetching.attempts} attempts",
        expected="a worker that finishes, and a tar, stats and parquet that agree",
        next_step=f"read {plan.evidence}; then run the same command again",
    )


def _disk_full(plan: Plan, log: str) -> BuildError:
    said = [line for line in log.splitlines() if line.startswith("writing failed")]
    return BuildError(
        f"shard {plan.shard}",
        found=said[-1] if said else "a write that failed",
        expected=f"room on the disk of {plan.root}",
        next_step="free some space and run the same command again; finished shards stay valid",
    )


def check_success_rate(plan: Plan, made: Made) -> dict[str, Any]:
    """Return the counts of a shard, or refuse it as an outage, with the counts on record.

    Raises:
        BuildError: Fewer successes than download.min_success_rate.
    """
    counted = count_outcomes(made.outcomes)
    share = counted["successes"] / counted["rows"]
    if share >= plan.fetching.min_success_rate:
        return counted
    reason = f"success rate {share:.1%}"
    evidence = keep_evidence(plan, reason, {**counted, "provenance": made.told["provenance"]})
    print(summarise(plan.shard, counted, made.triple.tar.stat().st_size, 0.0), flush=True)
    raise BuildError(
        f"shard {plan.shard}",
        found=f"{reason} ({counted['successes']} of {counted['rows']})",
        expected=f"at least {plan.fetching.min_success_rate:.1%} (config download.min_success_rate): "
        "this looks like an outage, not like bad data",
        next_step=f"read {evidence}. {dominant_advice(counted) or 'Run the same command again later.'}",
    )


def check_announced(plan: Plan, made: Made) -> dict[str, Any] | None:
    """Return how the payloads compare with the metadata's SHA-256; None if it announces none.

    Raises:
        BuildError: (Nearly) all mismatch: a wrong column, with the counts on record.
    """
    hashes = made.told.get("sha256")
    if hashes:
        try:
            check_hashes(plan.shard, hashes)
        except BuildError:
            keep_evidence(plan, "SHA-256 of nearly all payloads differ", {"sha256": hashes})
            raise
    return hashes


def check_way_out(plan: Plan, table: pa.Table) -> None:
    """Fail at once where no host of the shard can be reached from here; put that on record.

    Raises:
        BuildError: No host can be reached, or the proxy is of a kind that is not spoken.
    """
    fetcher = Fetcher(plan.content, plan.fetching)
    try:
        check_network(fetcher, table["url"].to_pylist())
    except BuildError as error:
        keep_evidence(plan, "no way to the web", {"found": error.found})
        raise


def download_shard(plan: Plan, table: pa.Table, cleaned: dict[str, int]) -> None:
    """Download every row of `table` and publish the triple.

    Args:
        plan: What and how.
        table: Cleaned rows, as `rows.clean_rows` returns them.
        cleaned: What the cleaning counted; goes into the stats.

    Raises:
        BuildError: No host can be reached, no attempt gave a shard that agrees with itself, too few
            URLs gave a picture, or nearly all have another SHA-256 than announced.
    """
    began = time.monotonic()
    wait_out_outage(plan)
    check_way_out(plan, table)
    with downloaded(plan, table) as made:
        hashes = check_announced(plan, made)
        counted = check_success_rate(plan, made)
        stats = read_json(made.triple.stats)
        extra = {**made.told, "cleaned": cleaned, "retry_rounds": 0}
        write_stats(made.triple.stats, complete_stats(stats, made.outcomes, extra))
        publish(made.triple, plan.target)
    size = plan.target.tar.stat().st_size
    print(summarise(plan.shard, counted, size, time.monotonic() - began), flush=True)
    if hashes:
        print(summary_line(hashes), flush=True)


def write_stats(path: Path, value: dict[str, Any]) -> None:
    """Write stats as img2dataset does: indented, its own keys first."""
    path.write_text(json.dumps(value, indent=4) + "\n")
