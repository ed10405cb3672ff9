"""Pictures of the audit, the same bytes for the same totals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from shardwright import verdicts
from shardwright.failures import TRANSIENT
from shardwright.files import replacing

# Text stays text (small files, searchable); ids and dates must not differ between two runs.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "shardwright",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
KEPT, LOST, RETRY = "#2a7f62", "#b8b8b8", "#d98a29"
TITLES = {
    "jpg_bytes": ("Size of a JPEG", "bytes"),
    "longest_side_px": ("Longest side", "pixels"),
    "side_ratio": ("Longest to shortest side", "ratio"),
    "caption_chars": ("Length of a caption", "characters"),
}


def _bars(axes: Axes, names: list[str], counts: list[int], colours: list[str], total: int) -> None:
    axes.barh(names, counts, color=colours)
    axes.invert_yaxis()
    axes.set_xlim(0, max(counts, default=1) * 1.25 or 1)
    for place, count in enumerate(counts):
        axes.text(count, place, f" {count:,}  ({100 * count / max(total, 1):.1f} %)", va="center")
    axes.tick_params(left=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def draw_outcomes(totals: dict[str, Any]) -> plt.Figure:
    """What became of every URL: usable, dropped by the audit, or not downloaded, by reason."""
    drops = {name: count for name, count in totals["verdicts"].items() if name != verdicts.KEEP and count}
    rows = [("usable", totals["verdicts"][verdicts.KEEP], KEPT)]
    for name, count in _by_count(drops):
        rows.append((name.replace("_", " "), count, LOST))
    for name, count in _by_count(totals["failures"]):
        rows.append((name.replace("_", " "), count, RETRY if name.partition(" ")[0] in TRANSIENT else LOST))
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.3 * len(rows)), layout="constrained")
    names, counts, colours = (list(column) for column in zip(*rows, strict=True))
    _bars(axes, names, counts, colours, totals["attempts"])
    axes.set_title(f"What became of {totals['attempts']:,} URLs", loc="left", fontweight="bold")
    axes.set_xlabel("URLs")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (KEPT, RETRY, LOST)]
    axes.legend(handles, ["usable", "may succeed later", "lost"], frameon=False, loc="lower right")
    return figure


def _edge(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 and value % 1000 == 0 else f"{value:g}"


def draw_shapes(totals: dict[str, Any]) -> plt.Figure:
    """Histograms of the usable samples."""
    figure, grid = plt.subplots(2, 2, figsize=(10, 6), layout="constrained")
    for axes, (name, (title, unit)) in zip(grid.flat, TITLES.items(), strict=True):
        edges, counts = totals["histograms"][name]["from"], totals["histograms"][name]["counts"]
        axes.bar(range(len(counts)), counts, width=1, align="edge", color=KEPT, edgecolor="white")
        axes.set_xticks(range(len(edges)), [_edge(edge) for edge in edges], rotation=45)
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel(f"{unit}, from")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def write_plots(totals: dict[str, Any], outcomes: Path, shapes: Path) -> None:
    """Draw the audit's two pictures as SVG.

    Args:
        totals: What audit_totals.py wrote.
        outcomes: SVG to write: what became of every URL.
        shapes: SVG to write: sizes, ratios and caption lengths of the usable samples.
    """
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    with plt.rc_context(STYLE):
        for path, draw in ((outcomes, draw_outcomes), (shapes, draw_shapes)):
            figure = draw(totals)
            with replacing(path) as scratch:
                figure.savefig(scratch, format="svg", metadata={"Date": None})
            plt.close(figure)
