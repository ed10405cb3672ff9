"""The plan: one parquet a tar with all that `convert_tar` needs, and a summary with their digests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright import verdicts
from shardwright.errors import BuildError
from shardwright.files import read_json, replacing, write_json
from shardwright.plan_table import SCHEMA, content_digest
from shardwright.selection import (
    REASONS,
    Exclusions,
    Selector,
    in_validation,
    iter_kept,
)


@dataclass
class PlanWriter:
    """Cuts the kept samples of one split into plans of `per_tar` rows."""

    folder: Path
    split: str
    per_tar: int
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _rows: pa.Table = field(default_factory=SCHEMA.empty_table)

    def append(self, rows: pa.Table) -> None:
        """Take more samples, and write every plan they fill."""
        self._rows = pa.concat_tables([self._rows, rows])
        while len(self._rows) >= self.per_tar:
            self._write(self._rows.slice(0, self.per_tar))
            self._rows = self._rows.slice(self.per_tar)

    def close(self) -> None:
        """Write the last plan, which may hold fewer samples."""
        if len(self._rows):
            self._write(self._rows)
            self._rows = SCHEMA.empty_table()

    @property
    def num_samples(self) -> int:
        """Samples written so far."""
        return sum(part["samples"] for part in self.parts.values())

    def _write(self, plan: pa.Table) -> None:
        stem = f"{self.split}-{len(self.parts):06d}"
        plan = plan.combine_chunks()
        with replacing(self.folder / f"{stem}.parquet") as scratch:
            pq.write_table(plan, scratch, compression="zstd", use_dictionary=["shard"])
        self.parts[stem] = {"samples": len(plan), "content_sha256": content_digest(plan)}


@dataclass(frozen=True)
class Budget:
    """What the config asks for."""

    total: int
    validation_fraction: float
    per_tar: int
    tars: dict[str, int]


def write_plan(
    audit: Path, num_shards: int, budget: Budget, exclusions: Exclusions, summary: Path
) -> dict[str, Any]:
    """Choose the samples, write the plans beside `summary`, then the summary itself.

    Args:
        audit: Folder of the shards' audits.
        num_shards: Shards to read, numbered from 0.
        budget: How many samples, in which splits and tars.
        exclusions: Samples to leave out.
        summary: Path of the summary JSON.

    Returns:
        The summary.

    Raises:
        BuildError: Too few samples, or other tar counts than `budget.tars`.
    """
    selector = Selector(budget.total, exclusions)
    writers = {split: PlanWriter(summary.parent, split, budget.per_tar) for split in ("train", "val")}
    for rows in iter_kept(audit, num_shards, selector):
        if len(rows):
            val = in_validation(rows["uid"].to_pylist(), budget.validation_fraction)
            writers["train"].append(rows.filter(pa.array(~val)))
            writers["val"].append(rows.filter(pa.array(val)))
    for writer in writers.values():
        writer.close()
    found = _summarise(selector, writers, exclusions)
    _check(found, budget, audit)
    for stale in summary.parent.glob("*.parquet"):
        if stale.stem not in found["parts"]:
            stale.unlink()
    write_json(summary, found)
    return found


def _summarise(selector: Selector, writers: dict[str, PlanWriter], exclusions: Exclusions) -> dict[str, Any]:
    listed = exclusions.uids | exclusions.jpg_sha256s
    return {
        "num_read": sum(selector.counts.values()),
        "num_kept": selector.counts[verdicts.KEEP],
        "dropped": {reason: selector.counts[reason] for reason in REASONS},
        "exclude": {"num_listed": len(listed), "num_unmatched": len(listed - selector.matched)},
        "splits": {
            split: {"samples": writer.num_samples, "tars": len(writer.parts)}
            for split, writer in writers.items()
        },
        "parts": {stem: part for writer in writers.values() for stem, part in writer.parts.items()},
    }


def _check(found: dict[str, Any], budget: Budget, audit: Path) -> None:
    num_kept = found["num_kept"]
    totals = read_json(audit / "totals.json")
    if found["num_read"] != totals["samples"]:
        raise BuildError(
            f"{audit}: the rows of all shards",
            found=f"{found['num_read']} samples",
            expected=f"{totals['samples']}, as audit/totals.json sums them",
            next_step="run `snakemake -R audit_totals`, which sums the audits anew",
        )
    dropped = ", ".join(f"{reason} {count}" for reason, count in found["dropped"].items() if count)
    if num_kept < budget.total:
        raise BuildError(
            f"{audit}: all audited samples",
            found=f"{num_kept} fit to keep of {found['num_read']} ({dropped or 'none dropped'})",
            expected=f"samples.total {budget.total}",
            next_step=f"set samples.total to {num_kept} or less, or pin more parquets",
        )
    tars = {split: realised["tars"] for split, realised in found["splits"].items()}
    if tars != budget.tars:
        counts = {split: realised["samples"] for split, realised in found["splits"].items()}
        raise BuildError(
            "config samples.tars",
            found=f"{counts['train']} train and {counts['val']} val samples, "
            f"which fill {tars['train']} and {tars['val']} tars of {budget.per_tar}",
            expected=f"{budget.tars['train']} and {budget.tars['val']} tars",
            next_step=f"set samples.tars to {{train: {tars['train']}, val: {tars['val']}}}",
        )
