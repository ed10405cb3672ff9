"""The gates between the audit and the training set, and the sentence a person reads first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardwright import verdicts
from shardwright.audit_advice import dominance_warnings, num_transient, picture_warnings

FORMAT = 1


@dataclass(frozen=True)
class Requirements:
    """What the config asks of the audited set.

    Args:
        rows: Rows of all pinned parquets.
        total: Samples to keep (samples.total).
        usual_percent: `LOW-HIGH`, the share of usable URLs that is usual for this set; empty if unknown.
        dominant_share: A failure class that makes up this share of all failures is warned of.
    """

    rows: int
    total: int
    usual_percent: str = ""
    dominant_share: float = 0.5


def _gate(name: str, found: str, expected: str, passed: bool, next_step: str) -> dict[str, Any]:
    return {
        "name": name,
        "found": found,
        "expected": expected,
        "passed": passed,
        "next_step": "" if passed else next_step,
    }


def _mend_shortfall(totals: dict[str, Any], total: int) -> str:
    usable, urls = totals["verdicts"][verdicts.KEEP], totals["attempts"]
    steps = []
    if num_transient(totals):
        steps.append(
            f"{num_transient(totals):,} failures are transient: fetch them again "
            "(`snakemake retry_failed -R retry_shard`)"
        )
    if usable:
        more = math.ceil((total - usable) / (usable / urls))
        steps.append(f"pin parquets with about {more:,} more URLs (metadata.pins)")
        steps.append(f"lower samples.total to {usable:,} or less")
    else:
        steps.append("look at the failure table: no URL at all was usable")
    return "; or ".join(steps)


def judge_gates(totals: dict[str, Any], required: Requirements) -> list[dict[str, Any]]:
    """Hold the totals against what the build needs; one entry a gate."""
    missing = totals["missing_shards"]
    usable = totals["verdicts"][verdicts.KEEP]
    shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    return [
        _gate(
            "shards",
            f"{totals['num_shards'] - len(missing)} audited shards"
            + (f" (without {shown})" if missing else ""),
            f"all {totals['num_shards']}",
            not missing,
            "run `snakemake audit` again: only the missing shards are downloaded and audited",
        ),
        _gate(
            "attempts",
            f"{totals['attempts']:,} attempts",
            f"the {required.rows:,} rows of the pinned parquets",
            totals["attempts"] == required.rows,
            "run `snakemake audit` again; if it stays so, the pin table and the shards are of two builds",
        ),
        _gate(
            "usable",
            f"at most {usable:,} usable samples (duplicates are found later)",
            f"at least {required.total:,} (samples.total)",
            usable >= required.total,
            _mend_shortfall(totals, required.total) if usable < required.total else "",
        ),
    ]


def _usable_percent(totals: dict[str, Any]) -> float:
    return 100 * totals["verdicts"][verdicts.KEEP] / max(totals["attempts"], 1)


def _usual(percent: float, usual_percent: str) -> str:
    """Where `percent` lies to the usual share; nothing if that is unknown."""
    if not usual_percent:
        return ""
    low, high = map(float, usual_percent.split("-"))
    place = "below" if percent < low else "above" if percent > high else "within"
    return f"{place} the {low:g} to {high:g} % that is usual for this set"


def verdict_sentence(totals: dict[str, Any], required: Requirements) -> str:
    """Say in one sentence how much is usable, whether that is normal, and what is needed."""
    percent = _usable_percent(totals)
    usual = _usual(percent, required.usual_percent)
    return (
        f"{percent:.1f} % of {totals['attempts']:,} URLs usable{', ' if usual else ''}{usual}; "
        f"{required.total:,} needed, at most {totals['verdicts'][verdicts.KEEP]:,} there"
    )


def low_shard_warnings(totals: dict[str, Any]) -> list[str]:
    """Name shards that are far worse than the set: an outage during their download, most likely."""
    share = totals["verdicts"][verdicts.KEEP] / max(totals["attempts"], 1)
    low = [line for line in totals["lowest_shards"] if line["usable"] < 0.5 * share * line["attempts"]]
    return [
        f"shard {line['shard']}: {line['usable']} of {line['attempts']} URLs usable, "
        "less than half of the share of the whole set"
        for line in low
    ]


def summarise(totals: dict[str, Any], required: Requirements) -> dict[str, Any]:
    """Return the summary: verdict, gates, warnings, and the numbers they rest on."""
    gates = judge_gates(totals, required)
    warnings = [
        *dominance_warnings(totals, required.dominant_share),
        *low_shard_warnings(totals),
        *picture_warnings(totals),
    ]
    usual = _usual(_usable_percent(totals), required.usual_percent)
    if usual.startswith("below"):
        warnings.insert(0, f"fewer URLs are usable than usual: {usual}")
    return {
        "format": FORMAT,
        "verdict": verdict_sentence(totals, required),
        "passed": all(gate["passed"] for gate in gates),
        "gates": gates,
        "warnings": warnings,
        "urls": totals["attempts"],
        "downloaded": totals["successes"],
        "usable_at_most": totals["verdicts"][verdicts.KEEP],
        "needed": required.total,
        "content_sha256": totals["content_sha256"],
    }
