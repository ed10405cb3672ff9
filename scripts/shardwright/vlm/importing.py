"""Import a fetched model: nothing missing, nothing left over, processor and weights made for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwright.errors import BuildError
from shardwright.files import read_json, sha256_file
from shardwright.vlm.models import (
    DTYPES,
    WEIGHTS,
    load_processor,
    model_class,
    save_weights,
    stored_weights,
    weights_digest,
)

NUM_LOGITS = 8


def _names(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def check_class(hub: Path, name: str) -> None:
    """Refuse a model file whose class is not the one the repository's config.json names.

    Raises:
        BuildError: They differ, or config.json is missing.
    """
    path = hub / "config.json"
    if not path.is_file():
        raise BuildError(
            str(path),
            found="no such file",
            expected="the model's config among its pinned files",
            next_step="add config.json to the pin table that the model file names under `files`",
        )
    named = (read_json(path).get("architectures") or ["nothing"])[0]
    if named != name:
        raise BuildError(
            str(path),
            found=f"architecture {named}",
            expected=f"{name}, the `class` of the model file",
            next_step="correct `class` or `repo` in the model file",
        )


def load_exactly(hub: Path, name: str, dtype: str, num_gpus: int) -> nn.Module:
    """Load the safetensors of a repository with no tensor missing and none left over.

    transformers fuses or splits expert tensors as the class wants them; what it could not place is
    reported and refused here.

    Args:
        hub: Folder of the verified files.
        name: transformers class.
        dtype: `bf16` or `fp32`.
        num_gpus: GPUs to spread the model over; 0 loads it on the CPU.

    Raises:
        BuildError: A missing, unexpected or misshapen tensor, or a file that cannot be read.
    """
    from safetensors import SafetensorError

    device_map = "balanced" if num_gpus else None
    try:
        model, info = model_class(name).from_pretrained(
            hub,
            dtype=DTYPES[dtype],
            device_map=device_map,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that a misshapen tensor is named below
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise BuildError(
            str(hub),
            found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            expected=f"the whole checkpoint of a {name}",
            next_step="compare the pin table with the repository's file list (scripts/pin_model.py lists it)",
        ) from error
    faults = {
        "missing": list(info["missing_keys"]),
        "unexpected": list(info["unexpected_keys"]),
        "misshapen": [str(entry[0]) for entry in info["mismatched_keys"]],
        "unconvertible": [str(entry) for entry in info.get("conversion_errors") or ()],
    }
    told = [f"{len(names)} {kind} ({_names(names)})" for kind, names in faults.items() if names]
    if told:
        raise BuildError(
            str(hub),
            found="tensors " + "; ".join(told),
            expected=f"exactly the tensors of {name}",
            next_step="check `class` in the model file, and that its pin table names every weights file",
        )
    return model.eval()


def open_processor(hub: Path) -> Any:
    """Load the repository's processor.

    Raises:
        BuildError: It has none that transformers can load.
    """
    try:
        return load_processor(hub)
    except (OSError, ValueError) as error:
        raise BuildError(
            f"processor in {hub}",
            found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            expected="a processor folder (processor or preprocessor config, tokenizer, chat template)",
            next_step="pin the processor and tokenizer files of the same repository and revision",
        ) from error


def check_processor(processor: Any, config: Any, hub: Path) -> None:
    """Refuse a processor that was not made for this model.

    Raises:
        BuildError: No image processor, more tokens than the model embeds, other image tokens, other patches.
    """
    pairs = [("image processor", bool(getattr(processor, "image_processor", None)), True)]
    vision, text = config.vision_config, config.get_text_config()
    tokenizer = processor.tokenizer if pairs[0][1] else processor
    if len(tokenizer) > text.vocab_size:
        pairs.append(("tokenizer size", f"{len(tokenizer)} tokens", f"at most {text.vocab_size}"))
    if pairs[0][1]:
        images = processor.image_processor
        pairs += [
            ("image token", tokenizer.convert_tokens_to_ids(processor.image_token), config.image_token_id),
            ("patch size", images.patch_size, vision.patch_size),
            ("merge size", images.merge_size, vision.spatial_merge_size),
            ("temporal patch size", images.temporal_patch_size, vision.temporal_patch_size),
            ("chat template", bool(processor.chat_template or tokenizer.chat_template), True),
        ]
    wrong = [entry for entry in pairs if entry[1] != entry[2]]
    if wrong:
        raise BuildError(
            f"processor in {hub}",
            found="; ".join(f"{what} {found}" for what, found, _ in wrong),
            expected="; ".join(f"{what} {expected}" for what, _, expected in wrong)
            + ", as the model's config",
            next_step="pin the processor and tokenizer files of the same repository and revision",
        )


def fixed_input(processor: Any) -> dict[str, torch.Tensor]:
    """The input of the fingerprint: a gradient of 96 × 64 px and a short question."""
    import numpy
    from PIL import Image

    rows, columns = numpy.mgrid[0:64, 0:96]
    pixels = numpy.stack([columns * 2, rows * 4, (columns + rows) % 256], axis=2).astype(numpy.uint8)
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe this image."}]}
    text = processor.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    return dict(processor(text=[text], images=[Image.fromarray(pixels)], return_tensors="pt"))


def fingerprint(model: nn.Module, processor: Any) -> dict[str, Any]:
    """Answer the fixed input: the largest logits of the next token, and a checksum of all of them.

    Returns:
        `top_tokens` (ids, largest first), `top_logits` (rounded to 1e-3), `mean` and `deviation`.
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        inputs = {name: value.to(device) for name, value in fixed_input(processor).items()}
        logits = model(**inputs).logits[0, -1].float().cpu()
    top = torch.topk(logits, NUM_LOGITS)
    if not torch.isfinite(logits).all():
        raise BuildError(
            "the imported model",
            found="logits that are not finite on the fixed input",
            expected="finite logits",
            next_step="compare the weights' digests with the repository's; try dtype fp32",
        )
    return {
        "top_tokens": top.indices.tolist(),
        "top_logits": [round(value, 3) for value in top.values.tolist()],
        "mean": round(logits.mean().item(), 3),
        "deviation": round(logits.std().item(), 3),
    }


def import_model(hub: Path, target: Path, about: dict[str, Any], num_gpus: int) -> dict[str, Any]:
    """Write the training form of a fetched model into `target`; return its report.

    Args:
        hub: Folder of the verified files.
        target: Empty folder to fill.
        about: `class` and `dtype` of the model file.
        num_gpus: GPUs to use; 0 for the CPU.

    Raises:
        BuildError: See `check_class`, `load_exactly`, `check_processor`.
    """
    check_class(hub, about["class"])
    processor = open_processor(hub)
    model = load_exactly(hub, about["class"], about["dtype"], num_gpus)
    check_processor(processor, model.config, hub)
    print(f"loaded {about['class']}: nothing missing, nothing left over", flush=True)
    answer = fingerprint(model, processor)
    weights = stored_weights(model)
    save_weights(model, target / WEIGHTS)
    model.config.save_pretrained(target)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(target)
    processor.save_pretrained(target)
    kept = sorted(path for path in target.iterdir() if path.is_file())
    return {
        "class": about["class"],
        "dtype": about["dtype"],
        "num_parameters": sum(tensor.numel() for tensor in model.parameters()),
        "num_tensors": len(weights),
        "weights_sha256": weights_digest(weights),
        "files": {path.name: sha256_file(path) for path in kept},
        "num_tokens": len(processor.tokenizer),
        "vocab_size": model.config.get_text_config().vocab_size,
        "fingerprint": answer,
    }
