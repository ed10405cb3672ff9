"""The samples of a raw tar: three adjacent members a key, in img2dataset's order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardwright.rawtar import BadTar, Member

SUFFIXES = ("jpg", "json", "txt")
_ORDER = ".jpg .json .txt"
_DIGITS = re.compile(r"\d*", re.ASCII).fullmatch


class RawSample(NamedTuple):
    """One sample of a raw tar: its key and its members."""

    key: str
    jpg: Member
    json: Member
    txt: Member

    @property
    def span(self) -> tuple[int, int]:
        """Where the payloads begin and end in the tar, with the headers between them."""
        return self.jpg.offset, self.txt.offset + self.txt.size


def _split(member: Member, shard: str) -> tuple[str, str]:
    """Return key and suffix of a member that may stand in this shard."""
    where = f"member {member.name}"
    key, _, suffix = member.name.partition(".")
    if suffix not in SUFFIXES:
        what = "a key with a dot or a foreign suffix" if "." in suffix else f"the suffix {suffix!r}"
        raise BadTar(where, what, f"<key> and one of {_ORDER}")
    if not key.startswith(shard) or not _DIGITS(key.removeprefix(shard)):
        raise BadTar(where, f"the key {key!r}", f"digits that start with the shard's number {shard}")
    return key, suffix


def _explain(members: Sequence[Member], shard: str) -> BadTar:
    """Say what is wrong with up to three members that should be one sample."""
    key, suffix = _split(members[0], shard)
    if suffix != SUFFIXES[0]:
        return BadTar(
            f"member {members[0].name}", f".{suffix} as first member of a key", f"{key}.{SUFFIXES[0]}"
        )
    for number, wanted in enumerate(SUFFIXES[1:], start=1):
        if number == len(members):
            return BadTar(f"key {key}", "the end of the tar", f"{key}.{wanted}")
        other, suffix = _split(members[number], shard)
        if (other, suffix) != (key, wanted):
            found = f"in the place of {key}.{wanted}"
            return BadTar(f"member {members[number].name}", found, "three adjacent members a key: " + _ORDER)
    raise AssertionError(f"nothing is wrong with {members}")


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
    stream = iter(members)
    while triple := tuple(itertools.islice(stream, len(SUFFIXES))):
        key = triple[0].name.removesuffix(".jpg")
        names = tuple(member.name for member in triple)
        digits = key.removeprefix(shard)
        if names != (f"{key}.jpg", f"{key}.json", f"{key}.txt") or digits == key or not _DIGITS(digits):
            raise _explain(triple, shard)
        if key in seen:
            raise BadTar(f"member {names[0]}", "a key that has its three members already", "each key once")
        seen.add(key)
        samples.append(RawSample(key, *triple))
    if not samples:
        raise BadTar("the whole file", "no member", "at least one sample")
    return samples
