"""The page about a build: numbers, plots and samples, in one HTML file without outside parts."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.files import read_json
from shardwright.report_page import PAGE

NUM_PICTURES = 12
NUM_REASONS = 12


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a run's metrics, a JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def inline_svg(text: str) -> str:
    """Cut an SVG file down to its `<svg>` element, as HTML embeds it."""
    return text[text.index("<svg") :]


def draw_losses(metrics: list[dict[str, Any]]) -> str:
    """Plot training and validation loss against the step; return an `<svg>` element."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shardwright"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for kind, style in (("train", {"lw": 1.2}), ("validation", {"marker": "o", "lw": 1.6})):
        points = [(entry["step"], entry["loss"]) for entry in metrics if entry["kind"] == kind]
        if points:
            axes.plot(*zip(*points, strict=True), label=kind, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a supervised token)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    return inline_svg(drawn.getvalue())


def pictures(tar: Path) -> Iterator[dict[str, str]]:
    """Yield uid, caption and picture (a data URL) of the samples of a tar, in order."""
    with tarfile.open(tar) as archive:
        members = iter(archive)
        for image, text in zip(members, members, strict=True):
            jpeg = archive.extractfile(image).read()
            turns = json.loads(archive.extractfile(text).read())["conversation"]
            yield {
                "uid": image.name.partition(".")[0],
                "caption": turns[-1]["content"][0]["text"],
                "url": "data:image/jpeg;base64," + base64.b64encode(jpeg).decode(),
            }


def read_reasons(path: Path) -> list[dict[str, str]]:
    """Read the audit's table of failures and drops."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def tiles(audit: dict[str, Any], record: dict[str, Any], done: dict[str, Any]) -> list[tuple[str, str]]:
    """The figures at the top of the page: (figure, what it is)."""
    counts = record["counts"]
    splits = ", ".join(f"{part['samples']:,} {name}" for name, part in counts["splits"].items())
    return [
        (f"{audit['urls']:,}", "URLs asked for"),
        (f"{100 * audit['downloaded'] / audit['urls']:.1f} %", "of them gave a picture"),
        (f"{counts['kept']:,}", f"samples kept ({splits})"),
        (f"{len(record['tars']):,}", "tars, each with its SHA-256"),
        (f"{record['model']['num_parameters']:,}", "parameters in the model"),
        (f"{done['first_loss']:.2f} → {done['last_loss']:.2f}", "training loss, first and last step"),
    ]


def render_report(root: Path, run: str) -> str:
    """Return the page about a finished build.

    Args:
        root: The build's root folder.
        run: Name of the training run.
    """
    import jinja2

    record = read_json(root / "provenance.json")
    audit = read_json(root / "audit/summary.json")
    done = read_json(root / f"train/{run}/completed.json")
    tars = read_json(root / "energon/manifest.json")["tars"]
    shown = next((tar for tar in tars if tar["split"] == "val"), tars[0])
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
    return template.render(
        record=record,
        audit=audit,
        done=done,
        tars=tars,
        tiles=tiles(audit, record, done),
        shown=shown["name"],
        pictures=list(itertools.islice(pictures(root / "energon" / shown["name"]), NUM_PICTURES)),
        reasons=read_reasons(root / "audit/failures.tsv")[:NUM_REASONS],
        plots=[inline_svg((root / f"audit/{name}.svg").read_text()) for name in ("outcomes", "shapes")],
        losses=draw_losses(read_metrics(root / f"train/{run}/metrics.jsonl")),
    )
