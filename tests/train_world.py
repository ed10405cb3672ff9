"""A small real world for training: an Energon dataset, the example's model imported, a command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from train_helpers import settings
from vlm_helpers import MODEL, limits, make_sample, write_dataset

TARGETS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"


def make_world(root: Path, num_train: int = 24, num_val: int = 6) -> Path:
    """Write `energon/` (two train tars, one val tar), `models/tiny/` and the files beside them."""
    samples = [make_sample(number) for number in range(num_train + num_val)]
    train, val = samples[:num_train], samples[num_train:]
    half = (num_train + 1) // 2
    splits = {"train": [part for part in (train[:half], train[half:]) if part]} | (
        {"val": [val]} if val else {}
    )
    dataset = write_dataset(root / "energon", splits)
    tars = [
        {"name": f"{split}-shard-{number:06d}.tar", "split": split, "samples": len(part)}
        for split, parts in splits.items()
        for number, part in enumerate(parts)
    ]
    (dataset / "manifest.json").write_text(json.dumps({"tars": tars}))
    import_tiny(root / "models/tiny")
    return root


def import_tiny(folder: Path) -> None:
    """Import the example's model into `folder`/import, with its report."""
    from shardwright.vlm.importing import import_model

    (folder / "import").mkdir(parents=True)
    about = {"class": "Qwen3VLForConditionalGeneration", "dtype": "fp32"}
    report = import_model(MODEL, folder / "import", about, 0)
    source = {"repo": "shardwright/tiny-qwen3-vl", "revision": "0" * 39 + "2"}
    (folder / "import.json").write_text(json.dumps(source | report))


def arguments(root: Path, out: Path, **changed: Any) -> list[str]:
    """Options of scripts/train_model.py for a run in `out`; keyword arguments are train settings."""
    asked = settings(**{"adapter_targets": "", **changed})
    options = {
        "manifest": root / "energon/manifest.json",
        "import-report": root / "models/tiny/import.json",
        "settings": json.dumps(asked),
        "limits": json.dumps(dataclasses.asdict(limits())),
        "targets": asked["adapter_targets"] or TARGETS,
        "state": out / "state",
        "checkpoint": out / "checkpoint",
        "metrics": out / "metrics.jsonl",
        "resolved-config": out / "resolved_config.yaml",
        "completed": out / "completed.json",
    }
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def run_train(options: list[str]) -> int:
    """Body of a forked rank: the real program."""
    import train_model

    return train_model.main(options)
