"""The two kinds of download settings: what a shard holds, and how its URLs are fetched.

Snakemake downloads finished shards again when a content setting changes, and only then: fewer
threads or a longer deadline must not cost two million downloads. Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from shardwright.errors import BuildError


@dataclass(frozen=True)
class Content:
    """Settings that decide which samples a shard holds and their pixels (config section download)."""

    image_size_px: int
    resize_mode: str
    resize_only_if_bigger: bool
    encode_quality: int
    decode: str
    max_bytes: int
    max_pixels: int
    blur: str
    face_boxes_frame: str
    allow_private_addresses: bool
    respect_robots_tag: bool
    sha256_policy: str


@dataclass(frozen=True)
class Fetching:
    """Settings that decide how, and how patiently, URLs are fetched."""

    thread_count: int
    retries: int
    timeout_s: float
    url_deadline_s: float
    max_redirects: int
    proxy: str
    user_agent: str
    verify_tls: bool
    shard_deadline_s: float
    stall_s: float
    attempts: int
    min_success_rate: float
    outage_wait_s: float
    log_interval_s: float


def content_json(download: dict[str, Any]) -> str:
    """Return the content settings of the config's download section, for `params` of a rule."""
    names = [field.name for field in dataclasses.fields(Content)]
    return json.dumps({name: download[name] for name in names}, sort_keys=True)


def fetching_json(download: dict[str, Any]) -> str:
    """Return the fetching settings of the config's download section."""
    names = [field.name for field in dataclasses.fields(Fetching)]
    return json.dumps({name: download[name] for name in names}, sort_keys=True)


def _load(kind: type, text: str, option: str) -> Any:
    names = sorted(field.name for field in dataclasses.fields(kind))
    try:
        values = json.loads(text)
        found = sorted(values)
    except (ValueError, TypeError):
        values, found = {}, [repr(text)]
    if found != names:
        raise BuildError(
            f"option {option}",
            found=", ".join(found),
            expected="a JSON object with the keys " + ", ".join(names),
            next_step="copy the command from `snakemake -n -p`; config/schema/download.yaml has the keys",
        )
    return kind(**values)


def load_content(text: str) -> Content:
    """Read what `content_json` wrote; BuildError if it is anything else."""
    return _load(Content, text, "--content")


def load_fetching(text: str) -> Fetching:
    """Read what `fetching_json` wrote; BuildError if it is anything else, or if it contradicts itself."""
    fetching = _load(Fetching, text, "--fetching")
    if fetching.stall_s <= fetching.url_deadline_s:
        raise BuildError(
            f"config download.stall_s {fetching.stall_s}",
            found=f"no more than download.url_deadline_s ({fetching.url_deadline_s})",
            expected="a longer time: a shard whose last URLs are slow is not stalled",
            next_step=f"set download.stall_s to at least {2 * fetching.url_deadline_s:.0f}",
        )
    return fetching
