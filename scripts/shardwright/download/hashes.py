"""The SHA-256 that the metadata announces for each payload. Standard library only.

The payload is hashed as it came, before any decoding. Both the worker and its supervisor use this.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shardwright.download.fetch_error import FetchError
from shardwright.errors import BuildError

# Column of the worker's table: face boxes and announced hash, which travel to the resizer together.
ANNOUNCED = "announced"
OUTCOMES = ("match", "mismatch", "unknown")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Payloads change at their source, about one in seven; nearly all at once means a wrong column.
_WRONG_SHARE = 0.95
_MIN_COMPARED = 20


def read_hash(text: str | None, counts: Counter[str]) -> str | None:
    """Return an announced hash in lower case, None if there is none; count what was found."""
    value = (text or "").strip().lower()
    fits = bool(_SHA256.fullmatch(value))
    counts["hashes_given"] += bool(value)
    counts["hashes_malformed"] += bool(value) and not fits
    return value if fits else None


def compare(payload: bytes, announced: str | None, strict: bool) -> str:
    """Return one of OUTCOMES.

    Raises:
        FetchError: A mismatch, if `strict`.
    """
    if announced is None:
        return "unknown"
    found = hashlib.sha256(payload).hexdigest()
    if found == announced:
        return "match"
    if strict:
        raise FetchError("hash_mismatch", f"found {found}, expected {announced}")
    return "mismatch"


def check_format(column: str | None, cleaned: Mapping[str, int]) -> None:
    """Refuse a column that does not hold SHA-256 digests, before anything is downloaded.

    Args:
        column: The column with the role sha256, if there is one.
        cleaned: The counts that `read_hash` made.

    Raises:
        BuildError: Half of its values or more are not 64 hex digits.
    """
    given, malformed = cleaned.get("hashes_given", 0), cleaned.get("hashes_malformed", 0)
    if malformed and 2 * malformed >= given:
        raise BuildError(
            f"config key metadata.columns, sha256={column}",
            found=f"{malformed} of {given} values that are not 64 hex digits (an MD5 has 32)",
            expected="the SHA-256 of each payload",
            next_step="name the column with the SHA-256, or leave the role sha256 out of metadata.columns",
        )


def check_hashes(shard: str, counts: Mapping[str, int]) -> None:
    """Refuse a shard (nearly) all of whose payloads mismatch: that is no decay of the web.

    Args:
        shard: The shard id.
        counts: Payloads by outcome.

    Raises:
        BuildError: It is one.
    """
    compared = counts.get("match", 0) + counts.get("mismatch", 0)
    if compared < _MIN_COMPARED or counts["mismatch"] < _WRONG_SHARE * compared:
        return
    raise BuildError(
        f"config key metadata.columns, role sha256 (shard {shard})",
        found=f"{counts['mismatch']} of {compared} payloads with another SHA-256 than announced",
        expected=f"less than {_WRONG_SHARE:.0%}: so many mean a wrong column or algorithm, "
        "not changed pictures",
        next_step="name the column with the SHA-256 of the payload (not of a resized picture or a URL), "
        "or leave the role sha256 out of metadata.columns",
    )


def summary_line(counts: Mapping[str, Any]) -> str:
    """Return what a person sees of the comparison."""
    told = ", ".join(f"{counts[name]:,} {name}" for name in OUTCOMES)
    return f"  SHA-256 as announced ({counts['policy']}): {told}"
