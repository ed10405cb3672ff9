"""The audits of all shards, summed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from shardwright import verdicts
from shardwright.errors import BuildError

FORMAT = 1
MAX_LISTED = 50
SUMMED = ("attempts", "successes", "members", "samples", "tar_bytes")
MERGED = ("failures", "verdicts", "counts", "adjustments")
NEXT_STEP = "delete the file and run the same command again: the shard is audited anew"


def read_report(path: Path) -> dict[str, Any]:
    """Read the report of one shard.

    Raises:
        BuildError: Not the JSON that audit_shard writes.
    """
    try:
        report = json.loads(path.read_bytes())
        found = f"format {report['format']}, shard {report['shard']}"
    except (ValueError, KeyError, TypeError) as error:
        report, found = {}, f"{type(error).__name__} {error}"
    if report.get("format") != FORMAT or report.get("shard") != path.stem:
        raise BuildError(
            str(path),
            found=found,
            expected=f"format {FORMAT}, shard {path.stem}, as audit_shard writes it",
            next_step=NEXT_STEP,
        )
    return report


def _add_histograms(total: dict[str, Any], part: dict[str, Any], where: Path) -> None:
    for name, histogram in part.items():
        into = total.setdefault(name, {"from": histogram["from"], "counts": [0] * len(histogram["counts"])})
        if into["from"] != histogram["from"]:
            raise BuildError(
                str(where),
                found=f"a histogram of {name} with other classes than the shards before",
                expected="audits made by one version of audit_shard",
                next_step=NEXT_STEP,
            )
        into["counts"] = [a + b for a, b in zip(into["counts"], histogram["counts"], strict=True)]


def _shard_line(report: dict[str, Any]) -> dict[str, Any]:
    return {
        "shard": report["shard"],
        "attempts": report["attempts"],
        "successes": report["successes"],
        "usable": report["verdicts"][verdicts.KEEP],
    }


def sum_reports(folder: Path, num_shards: int) -> dict[str, Any]:
    """Sum `{shard}.json` of `folder` for shards 0 to `num_shards` - 1.

    A missing report is listed, not refused: the gates judge it.

    Raises:
        BuildError: A report is there but is not one.
    """
    sums: Counter[str] = Counter(dict.fromkeys(SUMMED, 0))
    merged: dict[str, Counter[str]] = {name: Counter() for name in MERGED}
    repeated: Counter[str] = Counter()
    extra_samples = 0
    histograms: dict[str, Any] = {}
    lines, missing = [], []
    digest = hashlib.sha256()
    for number in range(num_shards):
        path = folder / f"{number:08d}.json"
        if not path.is_file():
            missing.append(path.stem)
            continue
        report = read_report(path)
        sums.update({name: report[name] for name in SUMMED})
        for name, counter in merged.items():
            counter.update(report[name])
        repeated.update(report["repeated_images"]["top"])
        extra_samples += report["repeated_images"]["extra_samples"]
        _add_histograms(histograms, report["histograms"], path)
        lines.append(_shard_line(report))
        digest.update(f"{report['shard']} {report['content_sha256']}\n".encode())
    top = sorted(repeated.items(), key=lambda item: (-item[1], item[0]))[:MAX_LISTED]
    lowest = sorted(lines, key=lambda line: (line["usable"] / line["attempts"], line["shard"]))
    return {
        "format": FORMAT,
        "num_shards": num_shards,
        "missing_shards": missing,
        **{name: sums[name] for name in SUMMED},
        "failures": dict(sorted(merged["failures"].items())),
        "verdicts": {name: merged["verdicts"][name] for name in verdicts.AUDIT_VERDICTS},
        "counts": dict(sorted(merged["counts"].items())),
        "adjustments": dict(sorted(merged["adjustments"].items())),
        "histograms": histograms,
        "repeated_images": {"extra_samples": extra_samples, "top": dict(top)},
        "lowest_shards": lowest[:10],
        "content_sha256": digest.hexdigest(),
    }
