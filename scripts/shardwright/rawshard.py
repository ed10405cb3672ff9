"""The samples of a raw tar: three adjacent members a key, in img2dataset's order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from shardwright.rawtar import BadTar, Member

SUFFIXES = ("jpg", "json", "txt")
_ORDER = ".jpg .json .txt"


class Span(NamedTuple):
    """Where bytes are in a file."""

    offset: int
    size: int


class RawSample(NamedTuple):
    """One sample of a raw tar: its key and the payload of each member."""

    key: str
    jpg: Span
    json: Span
    txt: Span


def _split(member: Member, shard: str) -> tuple[str, str]:
    """Return key and suffix of a member that may stand in this shard."""
    where = f"member {member.name}"
    key, _, suffix = member.name.partition(".")
    if suffix not in SUFFIXES:
        what = "a key with a dot or a foreign suffix" if "." in suffix else f"the suffix {suffix!r}"
        raise BadTar(where, what, f"<key> and one of {_ORDER}")
    if not re.fullmatch(rf"{shard}\d*", key, re.ASCII):
        raise BadTar(where, f"the key {key!r}", f"digits that start with the shard's number {shard}")
    return key, suffix


def group_samples(members: Iterable[Member], shard: str) -> list[RawSample]:
    """Group members into samples, in the tar's order.

    Args:
        members: As `walk_members` yields them.
        shard: The shard's number as file names carry it; every key starts with it.

    Raises:
        BadTar: A member is missing, foreign, doubled or out of place, or there is none.
    """
    samples: list[RawSample] = []
    seen: set[str] = set()
    spans: list[Span] = []
    open_key = ""
    for member in members:
        key, suffix = _split(member, shard)
        if spans and key != open_key:
            raise BadTar(
                f"member {member.name}",
                f"the next key after {' '.join(SUFFIXES[: len(spans)])} of {open_key}",
                f"{open_key}.{SUFFIXES[len(spans)]} (three adjacent members a key)",
            )
        if not spans and key in seen:
            raise BadTar(f"member {member.name}", "a key that has its three members already", "each key once")
        if suffix != SUFFIXES[len(spans)]:
            raise BadTar(
                f"member {member.name}",
                f".{suffix} in place {len(spans) + 1}",
                f"{key}.{SUFFIXES[len(spans)]}",
            )
        open_key = key
        spans.append(Span(member.offset, member.size))
        if len(spans) == len(SUFFIXES):
            samples.append(RawSample(key, *spans))
            seen.add(key)
            spans = []
    if spans:
        raise BadTar(f"key {open_key}", "the end of the tar", f"{open_key}.{SUFFIXES[len(spans)]}")
    if not samples:
        raise BadTar("the whole file", "no member", "at least one sample")
    return samples
