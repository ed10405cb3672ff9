"""Import a fetched model into the form that training reads, and report what it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.files import publish_folder, read_json, scratch_folder, sole_writer, write_json


def run(receipt_path: Path, target: Path, report: Path, about: dict[str, str], num_gpus: int) -> None:
    """Import `models/<model>/hub` and publish folder, then report, by rename.

    Raises:
        BuildError: Fewer GPUs than asked for, or a model that is not what the model file says.
    """
    if num_gpus:
        import torch

        if torch.cuda.device_count() < num_gpus:
            raise BuildError(
                "this node",
                found=f"{torch.cuda.device_count()} visible GPUs",
                expected=f"{num_gpus}, the model file's `ranks`",
                next_step="run the job on a whole GPU node (profiles/slurm), or set `ranks: 0` for the CPU",
            )
    from shardwright.vlm.importing import import_model

    receipt = read_json(receipt_path)
    with sole_writer(target, root=target.parents[2]), scratch_folder(target.parent, target.name) as scratch:
        made = import_model(receipt_path.with_suffix(""), scratch, about, num_gpus)
        publish_folder(scratch, target)
        source = {"repo": receipt["repo"], "revision": receipt["revision"], "hub_files": receipt["files"]}
        write_json(report, {**source, **made})
    print(f"imported {made['num_parameters']:,} parameters, weights {made['weights_sha256'][:12]}…")


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and import."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--hub", type=Path, required=True, help="receipt of the fetch, models/<model>/hub.json"
    )
    parser.add_argument("--class", dest="kind", required=True, help="the model's class in transformers")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], required=True, help="format of the weights")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use; 0 imports on the CPU")
    parser.add_argument("--target", type=Path, required=True, help="folder of the imported model")
    parser.add_argument("--report", type=Path, required=True, help="report to write last, JSON")
    args = parser.parse_args(argv)
    run(args.hub, args.target, args.report, {"class": args.kind, "dtype": args.dtype}, args.gpus)


if __name__ == "__main__":
    run_cli(main)
