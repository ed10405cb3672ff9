"""The imported model in this rank's memory: whole, or only this rank's share of it."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from shardwright.training.adapters import ADAPTER_MODES
from shardwright.training.parallel import Ranks, whole
from shardwright.vlm.models import WEIGHTS, empty_model, fill_model, give_memory


def storage_dtype(settings: dict[str, Any]) -> torch.dtype:
    """Number format in which weights are kept: what is trained in fp32, a frozen base as it computes.

    FSDP2 wants one format for a whole block, so there everything is kept in fp32 and cast to bf16
    as it is gathered.
    """
    frozen_base = settings["mode"] in ADAPTER_MODES and settings["parallel"] == "ddp"
    return torch.bfloat16 if settings["dtype"] == "bf16" and frozen_base else torch.float32


def open_model(settings: dict[str, Any], import_dir: Path, ranks: Ranks) -> nn.Module:
    """Open the imported model: whole on this rank's device, or empty when it will be sharded.

    Tied weights and a random start need the whole model first.
    """
    dtype = storage_dtype(settings)
    model = empty_model(import_dir, dtype)
    tied = getattr(model, "all_tied_weights_keys", None)
    if settings["parallel"] == "fsdp2" and settings["mode"] != "pretrain" and not tied:
        return model
    return fill_model(model, import_dir, ranks.device)


def is_empty(model: nn.Module) -> bool:
    """Whether a model's parameters have no memory yet."""
    return any(parameter.is_meta for parameter in model.parameters())


def fill_shards(model: nn.Module, import_dir: Path, device: torch.device) -> None:
    """Give an empty, sharded model its memory and read this rank's share of the base (collective)."""
    give_memory(model, device)
    base = {base_name(name): tensor for name, tensor in model.state_dict().items() if "lora_" not in name}
    dcp.load(base, checkpoint_id=str(import_dir / WEIGHTS))


def base_name(name: str) -> str:
    """The name that a tensor has in the model without adapters."""
    # peft nests one base_layer for each fused parameter of a module.
    return re.sub(r"\.base_layer(?=\.)", "", name.removeprefix("base_model.model."))


@torch.no_grad()
def start_adapters(model: nn.Module, seed: int) -> None:
    """Give adapters their first values, the same on any number of ranks (collective).

    A is uniform as in the LoRA paper's code, drawn from (seed, name); B is zero; DoRA's magnitude is
    the norm of each row of its base weight.
    """
    # DDP puts "module." before each name, and the draw must not depend on it.
    tensors = {name.removeprefix("module."): tensor for name, tensor in model.named_parameters()}
    for name, parameter in tensors.items():
        if ".lora_B." in name:
            parameter.zero_()
        elif ".lora_A." in name:
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            bound = 1 / math.sqrt(parameter.shape[-1])
            drawn = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
            _copy(parameter, drawn)
        elif ".lora_magnitude_vector." in name:
            owner = name.partition(".lora_magnitude_vector.")[0]
            _copy(parameter, whole(tensors[f"{owner}.base_layer.weight"]).float().norm(dim=1).cpu())


def _copy(parameter: nn.Parameter, value: torch.Tensor) -> None:
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    parameter.copy_(value)
