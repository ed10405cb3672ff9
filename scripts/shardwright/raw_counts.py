"""What stats and parquet of a raw shard say, held against each other and against the tar."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from shardwright.arrow import read_parquet
from shardwright.errors import BuildError
from shardwright.failures import classify, http_status

SUCCESS = "success"
FAILED = ("failed_to_download", "failed_to_resize")
_COUNTS = ("count", "successes", *FAILED)


@dataclass(frozen=True)
class Attempts:
    """The attempts of one shard: keys of the successes, failures by class (and HTTP code)."""

    num_rows: int
    success_keys: frozenset[str]
    failures: dict[str, int]

    @property
    def num_failures(self) -> int:
        """Attempts that gave no sample."""
        return self.num_rows - len(self.success_keys)


def failure_name(status: str, message: str | None) -> str:
    """The class of a failure, with its HTTP code behind it where there is one (`http_4xx 404`)."""
    name = classify(status, message)
    code = http_status(message)
    return f"{name} {code}" if code is not None and name.startswith("http_") else name


def read_stats(path: Path, next_step: str) -> dict[str, int]:
    """Read the counts of a `_stats.json`.

    Raises:
        BuildError: Not JSON, or a count is missing, or no whole number.
    """
    try:
        stats = json.loads(path.read_bytes())
        counts = {name: stats[name] for name in _COUNTS}
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(
            str(path),
            found=f"{type(error).__name__} {error}",
            expected="a JSON object with " + ", ".join(_COUNTS),
            next_step=next_step,
        ) from None
    wrong = {name: count for name, count in counts.items() if type(count) is not int or count < 0}
    if wrong:
        raise BuildError(str(path), found=str(wrong), expected="whole numbers", next_step=next_step)
    return counts


def read_attempts(path: Path, next_step: str) -> tuple[Attempts, Counter[str]]:
    """Read the rows of a raw parquet.

    Returns:
        The attempts, and how many rows have each status.

    Raises:
        BuildError: Not a parquet, or a row is malformed, or a key stands twice.
    """
    try:
        table = read_parquet(path, ["key", "status", "error_message"])
        keys, statuses, messages = (table[name].to_pylist() for name in ("key", "status", "error_message"))
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise BuildError(
            str(path),
            found=str(error).partition("\n")[0],
            expected="a parquet with the columns key, status, error_message",
            next_step=next_step,
        ) from None
    by_status = Counter(statuses)
    unknown = sorted(set(map(str, by_status)) - {SUCCESS, *FAILED})
    doubled = [key for key, count in Counter(keys).items() if count > 1 or key is None]
    if unknown or doubled:
        raise BuildError(
            str(path),
            found=f"status {unknown[0]!r}" if unknown else f"key {doubled[0]!r} in more than one row",
            expected="one row for each attempt, with a status of img2dataset",
            next_step=next_step,
        )
    failed = Counter(
        (status, text) for status, text in zip(statuses, messages, strict=True) if status != SUCCESS
    )
    failures: Counter[str] = Counter()
    for (status, text), count in failed.items():
        failures[failure_name(status, text)] += count
    success_keys = frozenset(key for key, status in zip(keys, statuses, strict=True) if status == SUCCESS)
    return Attempts(len(keys), success_keys, dict(sorted(failures.items()))), by_status


def _agree(subject: str, what: str, found: int, expected: int, source: str, next_step: str) -> None:
    if found != expected:
        raise BuildError(
            subject, found=f"{found} {what}", expected=f"{expected}, as {source}", next_step=next_step
        )


def check_attempts(parquet: Path, stats_path: Path, rows: int, next_step: str) -> Attempts:
    """Read stats and parquet of a shard and require that they agree with the plan and each other.

    Args:
        parquet: The shard's parquet.
        stats_path: The shard's `_stats.json`.
        rows: Rows that the plan gives the shard.
        next_step: For the error.

    Raises:
        BuildError: They do not.
    """
    stats = read_stats(stats_path, next_step)
    attempts, by_status = read_attempts(parquet, next_step)
    _agree(str(parquet), "rows", attempts.num_rows, rows, "the plan says", next_step)
    _agree(str(stats_path), "attempts", stats["count"], rows, "the plan says", next_step)
    for name, status in (("successes", SUCCESS), *((name, name) for name in FAILED)):
        _agree(str(stats_path), name, stats[name], by_status[status], f"{parquet.name} has", next_step)
    return attempts


def check_keys(tar: Path, tar_keys: frozenset[str], attempts: Attempts, next_step: str) -> None:
    """Require that the tar's complete groups are the parquet's successes.

    Raises:
        BuildError: A key is on one side only.
    """
    missing = sorted(attempts.success_keys - tar_keys)
    extra = sorted(tar_keys - attempts.success_keys)
    if missing or extra:
        shown = f"{missing[0]} is not in the tar" if missing else f"{extra[0]} is in the tar alone"
        raise BuildError(
            str(tar),
            found=f"{len(tar_keys)} complete groups ({shown})",
            expected=f"the {len(attempts.success_keys)} successes of stats and parquet",
            next_step=next_step,
        )
