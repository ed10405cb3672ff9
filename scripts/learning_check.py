"""Ask the base and the trained model about held-out pictures, and count how often each is right."""

from __future__ import annotations

import argparse
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

from shardwright.errors import run_cli
from shardwright.files import read_json, sole_writer, write_json


def main(argv: list[str] | None = None) -> None:
    """Parse the command line, ask, write the report, fail if nothing was learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="energon/manifest.json")
    parser.add_argument("--import-report", type=Path, required=True, help="models/<model>/import.json")
    parser.add_argument("--merged", type=Path, required=True, help="train/<run>/export/merged")
    parser.add_argument("--limits", type=json.loads, required=True, help="budgets of a sample, JSON")
    parser.add_argument("--facts", default="", help="facts to look at: name=word word;name=word ...")
    parser.add_argument("--samples", type=int, default=200, help="pictures to ask about at most")
    parser.add_argument("--report", type=Path, required=True, help="report to write, JSON")
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with sole_writer(args.report, root=args.report.parents[2]):
        check(args)


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Ask both models; write the evidence, then the report, and return it.

    Raises:
        BuildError: The trained model is not right more often.
    """
    from shardwright.training import grading
    from shardwright.vlm.budgets import Limits, set_pixel_limits
    from shardwright.vlm.models import load_processor

    tars = read_json(args.manifest)["tars"]
    names = {split: [tar["name"] for tar in tars if tar["split"] == split] for split in ("train", "val")}
    samples = list(islice(grading.read_split(args.manifest.parent, names["val"]), args.samples))
    train = list(grading.read_captions(args.manifest.parent, names["train"]))
    captions = [sample["caption"] for sample in samples]
    facts = grading.parse_facts(args.facts)
    processor = load_processor(args.merged)
    set_pixel_limits(processor, Limits(**args.limits))
    # One after the other: two models of 35 B parameters in fp32 would be 280 GB.
    said = {
        who: grading.describe(open_model(), processor, samples)
        for who, open_model in (("base", lambda: open_base(args)), ("trained", lambda: open_trained(args)))
    }
    right = {who: grading.grade(texts, captions, facts) for who, texts in said.items()}
    right["blind"] = grading.blind_guess(train, captions, facts)
    answers = [
        {"uid": sample["uid"], "caption": sample["caption"], **{who: said[who][n] for who in said}}
        for n, sample in enumerate(samples)
    ]
    report = {"num_pictures": len(samples), "right": right, "answers": answers}
    # Snakemake deletes a failed rule's output: the evidence also lies where no rule owns it.
    evidence = args.report.with_suffix(".evidence.json")
    write_json(evidence, report)
    for name in right["trained"]:
        counts = ", ".join(f"{who} {right[who][name]}" for who in ("base", "blind", "trained"))
        print(f"{name} right, of {len(samples)} held-out pictures: {counts}", flush=True)
    print(f"every answer: {evidence}", flush=True)
    grading.check_learned(right, len(samples))
    write_json(args.report, report)
    return report


def open_base(args: argparse.Namespace) -> Any:
    """The imported model."""
    import torch

    from shardwright.vlm.models import load_imported

    return load_imported(args.import_report.parent / "import", torch.float32, torch.device("cpu"))[0]


def open_trained(args: argparse.Namespace) -> Any:
    """The exported model, opened as a user would."""
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(args.merged, dtype=torch.float32)


if __name__ == "__main__":
    run_cli(main)
