"""From a run's checkpoint to files that other programs open: adapter, merged model, model card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from shardwright.errors import BuildError
from shardwright.files import read_json, sha256_file
from shardwright.training.adapters import ADAPTER_MODES, attach_adapters
from shardwright.vlm.models import DTYPES

FP32_TOLERANCE = 1e-4


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return checkpoint.json after checking every file's digest.

    Raises:
        BuildError: A file is missing or has other bytes.
    """
    about = read_json(folder / "checkpoint.json")
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
        model = attach_adapters(
            model, settings, about["inputs"]["targets"], about["inputs"]["target_parameters"]
        )
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
            found=f"logits {error:.3g} away from the trained model's on average (the base's: {change:.3g})",
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


def export_run(
    about: dict[str, Any], checkpoint: Path, load_base: Callable[[], tuple[nn.Module, Any]], folder: Path
) -> dict[str, float]:
    """Write adapter and merged model to `folder`, each reloaded from its files and compared.

    Args:
        about: The checkpoint's description (see `read_checkpoint`).
        checkpoint: The checkpoint directory.
        load_base: Returns the imported model in fp32 on the CPU, and its processor.
        folder: An empty folder.

    Returns:
        Mean absolute logit differences from the trained model, by what was reloaded.

    Raises:
        BuildError: A reloaded model does not answer as the trained one did.
    """
    settings = about["settings"]
    probe = torch.load(checkpoint / "probe.pt", weights_only=True)
    base, processor = load_base()
    base_logits = answer(base, probe)
    model = load_trained(base, about, checkpoint)
    errors: dict[str, float] = {}

    def compare(name: str, candidate: nn.Module, dtype: str) -> None:
        errors[name] = check_answer(str(folder / name), answer(candidate, probe), probe, base_logits, dtype)

    compare("checkpoint", model, settings["dtype"])
    if settings["mode"] in ADAPTER_MODES:
        save_adapter(model, about, folder / "adapter")
        # A 35 B model in fp32 is 140 GB: never hold the next one beside the last.
        del base, model
        model = load_adapter(load_base()[0], folder / "adapter")
        compare("adapter", model, settings["dtype"])
        # In fp32: a small update added to a bf16 weight is mostly rounded away.
        model = model.merge_and_unload()
    stored = DTYPES[about["model"]["dtype"]]
    model.to(stored).save_pretrained(folder / "merged")
    processor.save_pretrained(folder / "merged")
    base = model = None
    exact = stored == torch.float32 and settings["dtype"] == "fp32"
    compare("merged", _reopened(folder / "merged"), "fp32" if exact else "bf16")
    return errors


def _reopened(folder: Path) -> nn.Module:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    AutoProcessor.from_pretrained(folder)
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
