"""The model card of an export."""

from __future__ import annotations

from typing import Any

from shardwright.training.adapters import ADAPTER_MODES


def model_card(about: dict[str, Any], completed: dict[str, Any], files: dict[str, str]) -> str:
    """The README.md of an export: what it is, what it was made from, how to open it."""
    settings, model = about["settings"], about["model"]
    adapter = settings["mode"] in ADAPTER_MODES
    validation = completed["validation_loss"]
    losses = ", ".join(f"{loss:.4f} after step {step}" for step, loss in validation.items()) or "not measured"
    usage = [
        "```python",
        "from transformers import AutoModelForImageTextToText, AutoProcessor",
        "",
        'model = AutoModelForImageTextToText.from_pretrained("merged")',
        'processor = AutoProcessor.from_pretrained("merged")',
        "```",
    ]
    if adapter:
        usage += [
            "",
            "`adapter/` is the same training as a peft adapter for the base model at the revision below.",
        ]
    rows = [
        ("base model", f"{model['repo']} at {model['revision']}"),
        ("mode", settings["mode"]),
        ("steps", settings["steps"]),
        ("global batch", settings["global_batch_size"]),
        ("training loss", f"{completed['first_loss']:.4f} → {completed['last_loss']:.4f}"),
        ("validation loss", losses),
        (
            "samples, supervised tokens",
            f"{completed['num_samples']:,}, {completed['num_supervised_tokens']:,}",
        ),
        ("data manifest sha256", about["inputs"]["manifest_sha256"]),
        ("base weights sha256", about["inputs"]["weights_sha256"]),
        ("config fingerprint", about["fingerprint"]),
    ]
    lines = [
        "---",
        f"base_model: {model['repo']}",
        f"library_name: {'peft' if adapter else 'transformers'}",
        "pipeline_tag: image-text-to-text",
        "---",
        f"# {settings['run']}",
        "",
        *usage,
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in rows),
        "",
        "| file | sha256 |",
        "|---|---|",
        *(f"| {name} | {digest} |" for name, digest in sorted(files.items())),
    ]
    return "\n".join(lines) + "\n"
