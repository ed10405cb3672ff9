"""A shard's three files: do they agree, what do they count, how are they published."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from shardwright.failures import CLASSES, MEANING, TRANSIENT, classify, http_status
from shardwright.files import fsync_dir

_BLOCK = 512
SUFFIXES = ("jpg", "json", "txt")


@dataclass(frozen=True)
class Triple:
    """Paths of a shard's tar, parquet and stats."""

    tar: Path
    parquet: Path
    stats: Path

    @staticmethod
    def inside(folder: Path, stem: str) -> Triple:
        """Return the names that img2dataset gives the three files in `folder`."""
        return Triple(folder / f"{stem}.tar", folder / f"{stem}.parquet", folder / f"{stem}_stats.json")


def _walk(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and end of each regular member of a tar, reading headers only.

    Raises:
        ValueError: The tar is cut short, or a header is damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        position = 0
        while True:
            header = stream.read(_BLOCK)
            if len(header) < _BLOCK:
                raise ValueError("no end of archive")
            if not any(header):
                if size % _BLOCK or any(stream.read(_BLOCK)) or stream.tell() != position + 2 * _BLOCK:
                    raise ValueError("a damaged end of archive")
                return
            length = int(header[124:136].rstrip(b"\0 ") or b"0", 8)
            position += _BLOCK + -(-length // _BLOCK) * _BLOCK
            if position > size:
                raise ValueError("a member longer than the file")
            if header[156:157] in (b"0", b"\0"):
                yield header[:100].rstrip(b"\0").decode(), position
            stream.seek(position)


def end_of_members(path: Path) -> int:
    """Return where the last member of a tar ends and its end of archive begins."""
    return max((end for _, end in _walk(path)), default=0)


def read_outcomes(parquet: Path) -> list[dict[str, Any]]:
    """Return key, status and error_message of every attempt."""
    return pq.read_table(parquet, columns=["key", "status", "error_message"]).to_pylist()


def find_disagreement(triple: Triple, expected_keys: list[str]) -> str | None:
    """Compare tar, parquet and stats with each other and with the rows asked for.

    Returns:
        The first disagreement in words, or None.
    """
    try:
        stats = json.loads(triple.stats.read_text())
        outcomes = read_outcomes(triple.parquet)
        members = [name for name, _ in _walk(triple.tar)]
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    statuses = Counter(row["status"] for row in outcomes)
    good = sorted(row["key"] for row in outcomes if row["status"] == "success")
    failures = statuses["failed_to_download"] + statuses["failed_to_resize"]
    wanted = [f"{key}.{suffix}" for key in good for suffix in SUFFIXES]
    keys_in_order = [member.partition(".")[0] for member in members[::3]]
    checks = (
        (
            sorted(row["key"] for row in outcomes) == expected_keys,
            f"{len(outcomes)} of {len(expected_keys)} rows",
        ),
        (len(good) + failures == len(outcomes), f"statuses {dict(statuses)}"),
        (
            stats.get("count") == len(outcomes),
            f"stats count {stats.get('count')}, parquet rows {len(outcomes)}",
        ),
        (
            stats.get("successes") == len(good),
            f"stats successes {stats.get('successes')}, parquet {len(good)}",
        ),
        (len(members) == 3 * len(good), f"{len(members)} members for {len(good)} successes"),
        (sorted(members) == sorted(wanted), "tar members that are not the successes' jpg, json and txt"),
        (
            members == [f"{key}.{suffix}" for key in keys_in_order for suffix in SUFFIXES],
            "members of a sample that do not lie together",
        ),
    )
    return next((problem for fine, problem in checks if not fine), None)


def count_outcomes(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows, successes, failures by class and by HTTP status, and how many may yet succeed."""
    failed = [row for row in outcomes if row["status"] != "success"]
    by_class = Counter(classify(row["status"], row["error_message"]) for row in failed)
    by_status = Counter(http_status(row["error_message"]) for row in failed)
    by_status.pop(None, None)
    return {
        "rows": len(outcomes),
        "successes": len(outcomes) - len(failed),
        "failure_classes": {name: by_class[name] for name in CLASSES if by_class[name]},
        "http_status": {str(code): by_status[code] for code in sorted(by_status)},
        "transient": sum(by_class[name] for name in TRANSIENT),
    }


def _message(row: dict[str, Any]) -> str | None:
    """Return a failed row's message as the stats count it: without the digests of a hash_mismatch."""
    text = row["error_message"]
    return f"hash_mismatch: {MEANING['hash_mismatch']}" if str(text).startswith("hash_mismatch: ") else text


def complete_stats(
    stats: dict[str, Any], outcomes: list[dict[str, Any]], extra: dict[str, Any]
) -> dict[str, Any]:
    """Return img2dataset's stats with its counts taken from the rows, and what else we know."""
    messages = Counter("success" if row["status"] == "success" else _message(row) for row in outcomes)
    statuses = Counter(row["status"] for row in outcomes)
    counted = count_outcomes(outcomes)
    return {
        **stats,
        "count": len(outcomes),
        "successes": statuses["success"],
        "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"],
        "status_dict": dict(sorted(messages.items(), key=lambda pair: (-pair[1], pair[0]))),
        "failure_classes": counted["failure_classes"],
        "http_status": counted["http_status"],
        **extra,
    }


def publish(made: Triple, target: Triple) -> None:
    """Move a finished triple to its place, stats last; old stats never stand beside a new tar."""
    for path in (made.tar, made.parquet, made.stats):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        path.chmod(0o644)
    target.tar.parent.mkdir(parents=True, exist_ok=True)
    target.stats.unlink(missing_ok=True)
    made.tar.replace(target.tar)
    made.parquet.replace(target.parquet)
    made.stats.replace(target.stats)
    fsync_dir(target.tar.parent)
