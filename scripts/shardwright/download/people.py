"""What a person sees of a shard: a live line, a summary, advice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shardwright.failure_advice import ADVICE
from shardwright.failures import MEANING

# How to ask again: without -R, Snakemake holds a shard that was asked again once for done.
ASK_AGAIN = "`snakemake retry_failed -R retry_shard`"
# A class of failures that takes more of a shard than this stands out.
_DOMINANT_SHARE = 0.2


def dominant_advice(counted: Mapping[str, Any]) -> str:
    """Return what to do about the class of failures that stands out, or an empty text.

    http_4xx stands out only above half: lost pictures are the ordinary decay of the web. Its most
    frequent code speaks for it.
    """
    classes, codes = counted["failure_classes"], counted["http_status"]
    for name in sorted(classes, key=classes.get, reverse=True):
        limit = 0.5 if name == "http_4xx" else _DOMINANT_SHARE
        if classes[name] > limit * counted["rows"]:
            refusals = [code for code in codes if name == f"http_{code[0]}xx"]
            code = max(refusals, key=codes.get, default="")
            advice = ADVICE.get(f"{name} {code}", ADVICE.get(name, ""))
            return f"{classes[name]:,} {name}: {advice}" if advice else ""
    return ""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def _largest(classes: Mapping[str, int], number: int) -> str:
    names = sorted(classes, key=lambda name: (-classes[name], name))[:number]
    return ", ".join(f"{name} {classes[name]:,}" for name in names)


class LiveLine:
    """Prints one line every few seconds: rows done, pictures good, failures, speed, time left.

    Args:
        shard: The shard id as file names carry it.
        rows: Rows of the shard.
        every_s: Seconds between lines.
    """

    def __init__(self, shard: str, rows: int, every_s: float) -> None:
        self._shard, self._rows, self._every_s = shard, rows, every_s
        self._began = self._printed = time.monotonic()

    def __call__(self, counts: Mapping[str, int]) -> None:
        """Take new counts by outcome; print if it is time."""
        now = time.monotonic()
        if now - self._printed < self._every_s:
            return
        self._printed = now
        print(self.text(counts, now - self._began), flush=True)

    def text(self, counts: Mapping[str, int], seconds: float) -> str:
        """Return the line for `counts` after `seconds`."""
        done, good = sum(counts.values()), counts.get("success", 0)
        failures = {name: count for name, count in counts.items() if name != "success"}
        speed = done / seconds if seconds else 0.0
        left = f", {(self._rows - done) / speed / 60:.0f} min left" if speed else ""
        lost = f" | {_largest(failures, 4)}" if failures else ""
        return (
            f"{self._shard}: {done:,}/{self._rows:,} done, {good:,} good ({_percent(good, done)}), "
            f"{speed:.0f} rows/s{left}{lost}"
        )


def summarise(shard: str, counted: Mapping[str, Any], tar_bytes: int, seconds: float) -> str:
    """Return the final words on one shard."""
    rows, good = counted["rows"], counted["successes"]
    speed = rows / seconds if seconds else 0.0
    lines = [
        f"{shard}: {good:,} of {rows:,} pictures ({_percent(good, rows)}); "
        f"{tar_bytes / 1e6:.1f} MB in {seconds:.0f} s ({speed:.0f} rows/s)"
    ]
    for name, count in counted["failure_classes"].items():
        codes = {
            code: number for code, number in counted["http_status"].items() if name == f"http_{code[0]}xx"
        }
        detail = f" ({_largest(codes, 4)})" if codes else ""
        lines.append(f"  {count:>6,}  {name}: {MEANING[name]}{detail}")
    if counted["transient"]:
        lines.append(f"  {counted['transient']:,} of these may pass; {ASK_AGAIN} asks for them again")
    advice = dominant_advice(counted)
    return "\n".join([*lines, *([f"  {advice}"] if advice else [])])
