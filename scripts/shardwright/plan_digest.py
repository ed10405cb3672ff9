"""What the rules need to know of the selection: digests that tell whether a job is out of date.

Standard library only: the Snakefile imports this module.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from shardwright.files import find_path, read_json


@functools.lru_cache(maxsize=1)
def _digests(path: Path, mtime_ns: int) -> dict[str, str]:
    parts = read_json(path)["parts"]
    return {stem: part["content_sha256"] for stem, part in parts.items()}


def part_digest(root: str, stem: str) -> str:
    """Return the digest of a tar's content as planned; empty while there is no plan of it."""
    path = Path(root) / "plan/summary.json"
    if not path.is_file():
        return ""
    return _digests(path, path.stat().st_mtime_ns).get(stem, "")


def exclude_digest(exclude: str) -> str:
    """Return the digest of the file of excluded samples; empty if the config names none."""
    if not exclude:
        return ""
    path = find_path(exclude)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
