"""Counts by size class, with edges fixed once, so that shards can be summed."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

# Each class holds its lower edge and ends before the next; the last is open.
EDGES: dict[str, tuple[float, ...]] = {
    "jpg_bytes": (0, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000),
    "longest_side_px": (0, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 513, 1024),
    "shortest_side_px": (0, 16, 28, 32, 64, 128, 192, 256, 320, 384, 448, 512, 513),
    "side_ratio": (1, 1.2, 1.4, 1.6, 2, 3, 5, 10, 20, 50, 200),
    "caption_chars": (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
}


class SampleShapes:
    """Histograms of the kept samples of one shard."""

    def __init__(self) -> None:
        self._counts = {name: [0] * len(edges) for name, edges in EDGES.items()}

    def add(self, jpg_bytes: int, width: int, height: int, caption_chars: int) -> None:
        """Take one kept sample."""
        longest, shortest = max(width, height), min(width, height)
        values = {
            "jpg_bytes": jpg_bytes,
            "longest_side_px": longest,
            "shortest_side_px": shortest,
            "side_ratio": longest / shortest,
            "caption_chars": caption_chars,
        }
        for name, value in values.items():
            self._counts[name][bisect_right(EDGES[name], value) - 1] += 1

    def as_json(self) -> dict[str, Any]:
        """Edges and counts by name."""
        return {name: {"from": list(EDGES[name]), "counts": counts} for name, counts in self._counts.items()}
