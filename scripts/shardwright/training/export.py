"""From a run's checkpoint to files that other programs open: adapter, merged model, model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from shardwright.errors import BuildError
from shardwright.files import sha256_file
from shardwright.training.adapters import ADAPTER_MODES, attach_adapters

FP32_TOLERANCE = 1e-4


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return checkpoint.json after checking every file's digest.

    Raises:
        BuildError: A file is missing or has other bytes.
    """
    about = json.loads((folder / "checkpoint.json").read_text())
    for name, digest in sorted(about["sha256"].items()):
        path = folder / name
        found = sha256_file(path) if path.exists() else "no file"
        if found != digest:
            raise BuildError(
                str(path),
                found=found,
                expected=f"sha256 {digest}",
                next_step="run train_model again: it publishes the checkpoint anew from the run's state",
            )
    return about


def load_trained(model: nn.Module, about: dict[str, Any], folder: Path) -> nn.Module:
    """Put a checkpoint's trained tensors on the freshly loaded base `model`.

    Returns:
        The model itself, or peft's model around it in the adapter modes.

    Raises:
        BuildError: The tensors are not those of this model.
    """
    settings = about["settings"]
    if settings["mode"] in ADAPTER_MODES:
        model = attach_adapters(model, settings, about["targets"], about["target_parameters"])
    reader = dcp.FileSystemReader(folder / "tensors")
    saved = set(reader.read_metadata().state_dict_metadata)
    tensors = {name: p.detach() for name, p in model.named_parameters() if name in saved}
    if saved != set(tensors):
        raise BuildError(
            str(folder),
            found=f"tensors that the base model has no place for, such as {sorted(saved - set(tensors))[0]}",
            expected="tensors of the model that was trained",
            next_step="import the model revision that the checkpoint names",
        )
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return model.eval()


@torch.no_grad()
def answer(model: nn.Module, probe: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's logits on the inputs of a probe."""
    inputs = {key: value for key, value in probe.items() if key != "logits"}
    return model.eval()(**inputs, use_cache=False).logits.float()


def check_answer(
    what: str, found: torch.Tensor, probe: dict[str, torch.Tensor], base: torch.Tensor, dtype: str
) -> float:
    """Check that a reloaded model answers as the trained one did, and not as the base does.

    Args:
        what: Name of the files under test.
        found: Logits of the reloaded model.
        probe: Inputs and the trained model's logits.
        base: The base model's logits.
        dtype: What training computed in; bf16 answers are only near.

    Returns:
        The mean absolute difference from the trained model's logits.

    Raises:
        BuildError: Too far from the trained model, or no nearer to it than the base.
    """
    error = float((found - probe["logits"]).abs().mean())
    change = float((base - probe["logits"]).abs().mean())
    limit = FP32_TOLERANCE if dtype == "fp32" else 0.05 * float(probe["logits"].std())
    if error > limit or error > change / 2 or change == 0:
        raise BuildError(
            what,
            found=f"logits that differ from the trained model's by {error:.3g} on average; the base's by {change:.3g}",
            expected=f"at most {limit:.3g}, and far less than the base's",
            next_step="do not use these files; run the rule again, and report this if it comes back",
        )
    return error


def save_adapter(model: Any, about: dict[str, Any], folder: Path) -> None:
    """Write peft's adapter folder, naming the base model and its revision."""
    config = model.peft_config["default"]
    config.base_model_name_or_path = about["model"]["repo"]
    config.revision = about["model"]["revision"]
    config.inference_mode = True
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "README.md").unlink(missing_ok=True)


def load_adapter(base: nn.Module, folder: Path) -> Any:
    """Attach an adapter folder to a base model, every tensor in its place.

    Raises:
        BuildError: Adapter tensors are missing or unknown (peft only warns, and the adapter would
            do nothing).
    """
    from peft import PeftConfig, get_peft_model
    from peft.utils import set_peft_model_state_dict
    from safetensors.torch import load_file

    config = PeftConfig.from_pretrained(str(folder))
    model = get_peft_model(base, config)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(str(path))
    result = set_peft_model_state_dict(model, tensors)
    wanted = {name for name, _ in model.named_parameters() if "lora_" in name}
    missing = sorted(wanted & set(result.missing_keys))
    if missing or result.unexpected_keys:
        raise BuildError(
            str(path),
            found=f"{len(missing)} adapter tensors missing, {len(result.unexpected_keys)} unknown"
            f" (such as {(missing + sorted(result.unexpected_keys))[0]})",
            expected="exactly the adapter tensors of this base model's class",
            next_step="attach it to the class it was trained on; its keys carry that class's prefix",
        )
    return model.eval()


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
        ("imported model sha256", about["inputs"]["import_sha256"]),
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
