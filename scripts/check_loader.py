"""Read real batches of both splits through the real processor, and compare them with the tars."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.files import read_json, sole_writer, write_json


def run(
    manifest: Path,
    import_report: Path,
    settings: dict,
    micro_batch_size: int,
    num_batches: int,
    report: Path,
    packing: bool = False,
) -> None:
    """Check the splits that the manifest lists; write the report, then fail on any fault.

    Raises:
        BuildError: A batch is not what the tars hold, or breaks a limit; or packing is asked for
            and this model cannot keep samples apart.
    """
    from transformers import AutoConfig

    from shardwright.vlm.budgets import Limits
    from shardwright.vlm.checking import check_dataset
    from shardwright.vlm.encoder import VLMTaskEncoder
    from shardwright.vlm.models import load_processor
    from shardwright.vlm.packing import check_can_pack

    splits = sorted({tar["split"] for tar in read_json(manifest)["tars"]})
    imported = read_json(import_report)
    folder = import_report.parent / "import"
    limits = Limits(**settings)
    encoder = VLMTaskEncoder(load_processor(folder), limits)
    config = AutoConfig.from_pretrained(folder)
    if packing:
        check_can_pack(config, micro_batch_size)
    found = check_dataset(manifest.parent, splits, encoder, config, micro_batch_size, num_batches)
    found["limits"] = asdict(limits)
    found["model"] = {key: imported[key] for key in ("repo", "revision", "class", "weights_sha256")}
    with sole_writer(report, root=report.parent):
        # Snakemake deletes a failed rule's output: with faults it goes where no rule owns it.
        write_json(report.with_suffix(".failed.json") if found["num_faults"] else report, found)
    for split, about in found["splits"].items():
        print(f"{split}:")
        for name, value in about.items():
            print(f"  {name}: {json.dumps(value, ensure_ascii=False)}", flush=True)
    if found["num_faults"]:
        raise BuildError(
            str(manifest.parent),
            found=f"{found['num_faults']} faults: " + "; ".join(found["faults"][:3]),
            expected="supervised text that is the stored caption and end of turn, within the limits",
            next_step="report this with the log: the encoder and the dataset disagree",
        )


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="energon/manifest.json")
    parser.add_argument("--import-report", type=Path, required=True, help="models/<model>/import.json")
    parser.add_argument("--limits", type=json.loads, required=True, help="the config's data section, JSON")
    parser.add_argument("--micro-batch-size", type=int, required=True, help="samples in a batch")
    parser.add_argument("--packing", choices=["True", "False"], default="False", help="train.packing")
    parser.add_argument("--batches", type=int, default=16, help="batches to read of each split, at most")
    parser.add_argument("--report", type=Path, required=True, help="report to write, JSON")
    args = parser.parse_args(argv)
    run(
        args.manifest,
        args.import_report,
        args.limits,
        args.micro_batch_size,
        args.batches,
        args.report,
        args.packing == "True",
    )


if __name__ == "__main__":
    run_cli(main)
