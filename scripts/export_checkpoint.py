"""Export a run's checkpoint: peft adapter, merged model with processor, model card, each verified.

Every exported file is opened again, as a user would, and must answer like the trained model.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import publish_folder, read_json, scratch_folder, sha256_file, sole_writer, write_json


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completed", type=Path, required=True, help="train/<run>/completed.json")
    parser.add_argument("--checkpoint", type=Path, required=True, help="train/<run>/checkpoint")
    parser.add_argument("--import-report", type=Path, required=True, help="models/<model>/import.json")
    parser.add_argument("--export", type=Path, required=True, help="folder to write")
    parser.add_argument("--report", type=Path, required=True, help="export.json, written last")
    args = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with sole_writer(args.report, root=args.report.parents[2]):
        export(args.completed, args.checkpoint, args.import_report, args.export, args.report)


def export(completed_path: Path, checkpoint: Path, import_report: Path, target: Path, report: Path) -> None:
    """Export one run.

    Raises:
        BuildError: Damaged inputs, or an exported model that does not answer as the trained one.
    """
    import torch

    from shardwright.training.card import model_card
    from shardwright.training.export import export_run, read_checkpoint
    from shardwright.vlm.models import load_imported

    completed = read_json(completed_path)
    about = read_checkpoint(checkpoint)

    def load_base() -> tuple[torch.nn.Module, object]:
        return load_imported(import_report.parent / "import", torch.float32, torch.device("cpu"))

    with scratch_folder(target.parent, target.name) as scratch:
        errors = export_run(about, checkpoint, load_base, scratch)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        digests = {str(path.relative_to(scratch)): sha256_file(path) for path in files}
        (scratch / "README.md").write_text(model_card(about, completed, digests), encoding="utf-8")
        digests["README.md"] = sha256_file(scratch / "README.md")
        publish_folder(scratch, target)
    result = {"run": about["settings"]["run"], "mean_logit_error": errors, "sha256": digests}
    write_json(report, result)
    print(
        f"{target}: {', '.join(f'{name} {error:.2g}' for name, error in errors.items())} (mean logit error)"
    )


if __name__ == "__main__":
    run_cli(main)
