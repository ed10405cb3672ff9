"""Imported models: how their weights lie on disk, and how a process or a group of ranks loads them.

An import folder holds `weights/` (a torch distributed checkpoint, which any number of ranks reads in
part), `config.json`, `generation_config.json` and the processor's files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwright.errors import BuildError

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WEIGHTS = "weights"


def model_class(name: str) -> type[nn.Module]:
    """Return the transformers class of that name.

    Raises:
        BuildError: This transformers has no such class.
    """
    import transformers

    found = getattr(transformers, name, None)
    if found is None:
        raise BuildError(
            f"model class {name}",
            found=f"no such class in transformers {transformers.__version__}",
            expected="the name that the model's config.json gives under `architectures`",
            next_step="correct `class` in the model file, or pin a transformers that has it in envs/main.in",
        )
    return found


def stored_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors of a model by name, each once: a tied weight is left to the one it is tied to."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def weights_digest(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 over name, format, shape and bytes of each tensor, in order of name (64 hex digits)."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the model's tensors as a distributed checkpoint, a file each, so that ranks read in parallel."""
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(folder, single_file_per_rank=False, thread_count=4)
    dcp.save(stored_weights(model), storage_writer=writer, no_dist=True)


def empty_model(folder: Path, dtype: torch.dtype) -> nn.Module:
    """Build the model of an import folder with parameters on the meta device and real buffers.

    A sharded run wraps this one first, so that no rank ever holds the whole model.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    with init_empty_weights(include_buffers=False):
        model = model_class(config.architectures[0])._from_config(config, dtype=dtype)
    return model.eval()


def give_memory(model: nn.Module, device: torch.device) -> None:
    """Give an empty model uninitialised parameters on `device`; its real buffers keep their values."""
    buffers = {name: buffer.to(device) for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in buffers.items():
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = buffer


def fill_model(model: nn.Module, folder: Path, device: torch.device) -> nn.Module:
    """Give an empty model (sharded or whole) memory on `device`, and load this process's part of it.

    Collective when the model is sharded over ranks.
    """
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    give_memory(model, device)
    model.tie_weights()
    dcp.load(stored_weights(model), checkpoint_id=str(folder / WEIGHTS), no_dist=not dist.is_initialized())
    return model


def load_imported(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, Any]:
    """Load the whole imported model into this process.

    Args:
        folder: `models/<model>/import`.
        dtype: Number format of the parameters in memory.
        device: Where they go.

    Returns:
        The model in evaluation mode, and its processor.
    """
    return fill_model(empty_model(folder, dtype), folder, device), load_processor(folder)


def load_processor(folder: Path) -> Any:
    """Load the processor (chat template, tokenizer, image processor) of an import or hub folder."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)
