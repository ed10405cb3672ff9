"""Fetch the transient failures of a finished shard again and merge what succeeds into its triple."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright.download.hashes import OUTCOMES
from shardwright.download.people import ASK_AGAIN
from shardwright.download.rows import clean_rows, read_rows
from shardwright.download.shard import Made, Plan, check_way_out, downloaded, write_stats
from shardwright.download.triple import (
    complete_stats,
    count_outcomes,
    end_of_members,
    find_disagreement,
    finish_merge,
    publish_merged,
    read_outcomes,
)
from shardwright.errors import BuildError
from shardwright.failures import TRANSIENT, classify
from shardwright.files import read_json, scratch_folder


def _transient_rows(plan: Plan, outcomes: list[dict[str, Any]]) -> list[int]:
    first = int(plan.key(0))
    return sorted(
        int(row["key"]) - first
        for row in outcomes
        if row["status"] != "success" and classify(row["status"], row["error_message"]) in TRANSIENT
    )


def _merge_parquet(old: Path, new: Path, merged: Path) -> None:
    """Write the rows of `old`, those that `new` has too taken from `new`."""
    before, after = pq.read_table(old), pq.read_table(new)
    again = set(after["key"].to_pylist())
    kept = before.filter(pa.array([key not in again for key in before["key"].to_pylist()]))
    pq.write_table(pa.concat_tables([kept, after.select(before.column_names).cast(before.schema)]), merged)


def _merge_tar(old: Path, new: Path, merged: Path) -> None:
    """Append the members of `new` to those of `old`."""
    with merged.open("wb") as out:
        with old.open("rb") as stream:
            left = end_of_members(old)
            while left:
                piece = stream.read(min(left, 1 << 20))
                out.write(piece)
                left -= len(piece)
        with new.open("rb") as stream:
            shutil.copyfileobj(stream, out, 1 << 20)


def _merge_stats(old: dict[str, Any], made: Made, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    seen = Counter(old.get("pictures", {})) + Counter(made.told["pictures"])
    extra = {"pictures": dict(sorted(seen.items())), "retry_rounds": old.get("retry_rounds", 0) + 1}
    if "sha256" in made.told:
        earlier = old.get("sha256", {})
        counts = {name: earlier.get(name, 0) + made.told["sha256"][name] for name in OUTCOMES}
        extra["sha256"] = {**made.told["sha256"], **counts}
    return complete_stats(old, outcomes, extra)


def _merge(plan: Plan, made: Made, folder: Path) -> None:
    merged = plan.target.moved_to(folder)
    _merge_tar(plan.target.tar, made.triple.tar, merged.tar)
    _merge_parquet(plan.target.parquet, made.triple.parquet, merged.parquet)
    outcomes = read_outcomes(merged.parquet)
    stats = read_json(plan.target.stats)
    write_stats(merged.stats, _merge_stats(stats, made, outcomes))
    problem = find_disagreement(merged, [plan.key(row) for row in range(len(outcomes))])
    if problem:
        raise BuildError(
            f"shard {plan.shard}",
            found=f"after the merge: {problem}",
            expected="old and new samples that agree; the shard was left as it was",
            next_step=f"delete {plan.target.stats} and build it again",
        )
    publish_merged(folder, plan.target)


def retry_shard(plan: Plan, parquet: Path, rows: tuple[int, int], columns: dict[str, str]) -> dict[str, Any]:
    """Fetch the transient failures of one finished shard again.

    The triple is replaced only if pictures were gained; a shard without any is left untouched.

    Args:
        plan: The shard's plan; `target` exists.
        parquet: The metadata parquet.
        rows: First row of the shard and the row after its last.
        columns: Role → column of the parquet.

    Returns:
        What was asked for again and what came of it.

    Raises:
        BuildError: There is no way to the web, the shard does not agree with itself, or the worker
            failed.
    """
    finish_merge(plan.target)
    outcomes = read_outcomes(plan.target.parquet)
    again = _transient_rows(plan, outcomes)
    before = count_outcomes(outcomes)
    gained = 0
    if again:
        table, _ = clean_rows(read_rows(parquet, *rows, columns))
        check_way_out(plan, table)  # by all its rows: those that failed may be on dead hosts alone
        with downloaded(plan, table.take(again), again) as made:
            gained = count_outcomes(made.outcomes)["successes"]
            if gained:
                with scratch_folder(plan.root / "scratch", plan.shard) as folder:
                    _merge(plan, made, folder)
    after = count_outcomes(read_outcomes(plan.target.parquet))
    print(
        f"{plan.shard}: {len(again):,} of {before['rows']:,} URLs asked for again, "
        f"{gained:,} pictures gained; {after['successes']:,} now"
        + (f"; {after['transient']:,} may pass yet ({ASK_AGAIN})" if after["transient"] else ""),
        flush=True,
    )
    return {
        "shard": plan.shard,
        "asked_again": len(again),
        "gained": gained,
        "before": before,
        "after": after,
    }
