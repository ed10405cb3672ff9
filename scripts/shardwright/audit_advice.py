"""What a failure class means for the user: the table of failures, and warnings when one dominates."""

from __future__ import annotations

from typing import Any

from shardwright import verdicts
from shardwright.failure_advice import ADVICE
from shardwright.failures import MEANING, TRANSIENT

COLUMNS = ("stage", "reason", "code", "count", "percent_of_urls", "transient", "meaning", "advice")
REASON_ADVICE = {
    verdicts.BAD_UID: "look at the uid column named in metadata.columns",
    verdicts.BAD_FACE_BBOXES: "look at the face_bboxes column named in metadata.columns",
    verdicts.CAPTION_MISMATCH: "null captions differ from empty ones; otherwise the raw shard is damaged",
    verdicts.BLANK_CAPTION: "nothing to mend: the metadata has no caption",
    verdicts.BAD_JPEG: "the raw shard is damaged: delete its tar and run again",
}

# A handful is normal for the web; this many say that something went wrong on the way.
SUSPECT_SHARE = 0.005
MIN_SUSPECTS = 5
SUSPECTS = {
    "unclean_captions": "have captions with control characters or chat tokens such as <|im_end|>",
    "near_constant": "show next to nothing (one colour): 16-bit originals may have been clipped to white",
    "sideways": "lie on their side: the download did not apply their EXIF orientation",
    "stated_size_wrong": "have another size than their metadata says: the raw shards are not img2dataset's",
}


def _split_name(name: str) -> tuple[str, str]:
    reason, _, code = name.partition(" ")
    return reason, code


def failure_rows(totals: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each failure class (and HTTP code) and each reason for a drop, most frequent first."""
    urls = max(totals["attempts"], 1)
    rows = []
    for name, count in totals["failures"].items():
        reason, code = _split_name(name)
        rows.append(
            {
                "stage": "download",
                "reason": reason,
                "code": code,
                "count": count,
                "transient": "yes" if reason in TRANSIENT else "no",
                "meaning": MEANING[reason],
                "advice": ADVICE.get(name, ADVICE.get(reason, "nothing to mend")),
            }
        )
    for reason, count in totals["verdicts"].items():
        if reason == verdicts.KEEP or not count:
            continue
        rows.append(
            {
                "stage": "audit",
                "reason": reason,
                "code": "",
                "count": count,
                "transient": "no",
                "meaning": verdicts.MEANINGS[reason],
                "advice": REASON_ADVICE.get(reason, "look at `dropped` in audit/{shard}.json"),
            }
        )
    for row in rows:
        row["percent_of_urls"] = f"{100 * row['count'] / urls:.2f}"
    return sorted(rows, key=lambda row: (-row["count"], row["stage"], row["reason"], row["code"]))


def failures_tsv(totals: dict[str, Any]) -> str:
    """The failure table as tab-separated text with a header."""
    lines = ["\t".join(COLUMNS)]
    lines += ["\t".join(str(row[name]) for name in COLUMNS) for row in failure_rows(totals)]
    return "\n".join(lines) + "\n"


def num_transient(totals: dict[str, Any]) -> int:
    """Failures that may succeed at another time."""
    return sum(count for name, count in totals["failures"].items() if _split_name(name)[0] in TRANSIENT)


def dominance_warnings(totals: dict[str, Any], dominant_share: float) -> list[str]:
    """A line for each class or HTTP code that alone makes up `dominant_share` of all failures."""
    num_failures = sum(totals["failures"].values())
    if num_failures < 0.05 * totals["attempts"]:
        return []
    by_class: dict[str, int] = {}
    for name, count in totals["failures"].items():
        reason = _split_name(name)[0]
        by_class[reason] = by_class.get(reason, 0) + count
    warnings = []
    for name, count in sorted((by_class | totals["failures"]).items()):
        if count >= dominant_share * num_failures:
            advice = ADVICE.get(name, ADVICE.get(_split_name(name)[0], "nothing to mend"))
            warnings.append(f"{name} is {100 * count / num_failures:.0f} % of all failures: {advice}")
    return warnings


def picture_warnings(totals: dict[str, Any]) -> list[str]:
    """Lines on sound JPEGs that may not be worth training on."""
    samples, counts = max(totals["samples"], 1), totals["counts"]
    warnings = []
    digest, count = max(totals["repeated_images"]["top"].items(), key=lambda item: item[1], default=("", 0))
    if count >= MIN_SUSPECTS and count >= SUSPECT_SHARE * samples:
        warnings.append(
            f"one picture stands {count} times or more (a placeholder?): look at it, and put its SHA-256 "
            f"{digest} into the file samples.exclude if so"
        )
    for name, text in SUSPECTS.items():
        if counts[name] >= MIN_SUSPECTS and counts[name] >= SUSPECT_SHARE * samples:
            warnings.append(f"{counts[name]} pictures {text}")
    return warnings
