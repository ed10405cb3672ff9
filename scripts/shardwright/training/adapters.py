"""What is trained: freeze switches, LoRA and DoRA adapters, and the table that shows it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from torch import nn

from shardwright.errors import BuildError

PARTS = ("vision_tower", "projector", "language_model")
PROJECTOR = re.compile(r"(^|.*\.)visual\.(merger|deepstack_merger_list)(\..*|$)")
VISION_TOWER = re.compile(r"(^|.*\.)visual(\..*|$)")
ADAPTER_MODES = ("lora", "dora")


def part_of(name: str) -> str:
    """The part of the model that a module or parameter belongs to, by its qualified name."""
    if PROJECTOR.fullmatch(name):
        return "projector"
    return "vision_tower" if VISION_TOWER.fullmatch(name) else "language_model"


def frozen_parts(settings: dict[str, Any]) -> set[str]:
    """The parts that the config's freeze switches name.

    Raises:
        BuildError: All of them, which leaves nothing to train.
    """
    frozen = {part for part in PARTS if settings[f"freeze_{part}"]}
    if len(frozen) == len(PARTS):
        raise BuildError(
            "config train.freeze_*",
            found="all three parts frozen",
            expected="at least one part to train",
            next_step="set train.freeze_vision_tower, freeze_projector or freeze_language_model to false",
        )
    return frozen


def set_trainable(model: nn.Module, frozen: set[str]) -> None:
    """Let exactly the parameters outside `frozen` parts require gradients."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) not in frozen)


def check_targets(model: nn.Module, targets: list[str], parameters: list[str], frozen: set[str]) -> None:
    """Check that each adapter target names something outside the frozen parts.

    Raises:
        BuildError: A target matches nothing; the nearest module endings are told.
    """
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    tensors = [name for name, _ in model.named_parameters()]
    for wanted, names, kind in ((targets, linears, "linear module"), (parameters, tensors, "parameter")):
        open_names = [name for name in names if part_of(name) not in frozen]
        for target in wanted:
            if not any(name == target or name.endswith(f".{target}") for name in open_names):
                endings = sorted({name.rpartition(".")[2] for name in open_names})
                raise BuildError(
                    f"adapter target {target!r}",
                    found=f"no {kind} of that name outside the frozen parts ({', '.join(sorted(frozen))})",
                    expected="at least one; the endings here are " + ", ".join(endings[:20]),
                    next_step="correct train.adapter_targets or the model file, or unfreeze its part",
                )


def attach_adapters(
    model: nn.Module, settings: dict[str, Any], targets: list[str], parameters: list[str]
) -> nn.Module:
    """Put LoRA or DoRA adapters on the named modules and fused-expert parameters.

    Args:
        model: The loaded model.
        settings: The config's `train` section.
        targets: Endings of linear modules.
        parameters: Endings of parameters that are no linear module (fused experts).

    Returns:
        peft's model around `model`; only adapter tensors, in fp32, are trainable. Their first values
        come later (`loading.start_adapters`).

    Raises:
        BuildError: A target matches nothing, or DoRA was asked for fused experts.
    """
    from peft import LoraConfig, get_peft_model

    frozen = frozen_parts(settings)
    check_targets(model, targets, parameters, frozen)
    if parameters and settings["mode"] == "dora":
        raise BuildError(
            "config train.mode",
            found=f"dora with fused-expert targets {' '.join(parameters)}",
            expected="lora, since peft has no DoRA for parameters that are no linear module",
            next_step="set train.mode to lora, or leave the fused experts out of train.adapter_targets",
        )
    if parameters and settings["adapter_dropout"]:
        raise BuildError(
            "config train.adapter_dropout",
            found=f"{settings['adapter_dropout']} with fused-expert targets {' '.join(parameters)}",
            expected="0, since peft cannot drop inputs of parameters that are no linear module",
            next_step="set train.adapter_dropout to 0, or leave the fused experts out",
        )
    config = LoraConfig(
        r=settings["adapter_rank"],
        lora_alpha=settings["adapter_alpha"],
        lora_dropout=settings["adapter_dropout"],
        use_dora=settings["mode"] == "dora",
        target_modules=sorted(targets),
        target_parameters=sorted(parameters) or None,
        exclude_modules=_exclusion(frozen),
    )
    empty = any(parameter.is_meta for parameter in model.parameters())
    return get_peft_model(model, config, low_cpu_mem_usage=empty)


def _exclusion(frozen: set[str]) -> str | None:
    patterns = {
        "projector": r".*visual\.(merger|deepstack_merger_list)\..*",
        "vision_tower": r".*visual\.(?!merger|deepstack_merger_list).*",
        "language_model": r"(?!.*visual\.).*",
    }
    return "|".join(patterns[part] for part in sorted(frozen)) or None


def trainable_table(model: nn.Module) -> list[str]:
    """Lines that show what is trained: module pattern, part, tensors, parameters."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            short = re.sub(r"^base_model\.model\.", "", name)
            short = re.sub(r"\.(lora_\w+)(\.default)?(\.weight)?$", "", short)
            key = (re.sub(r"\.\d+(?=\.|$)", ".*", short), part_of(short))
            counts[key] += 1
            sizes[key] += parameter.numel()
    lines = [f"{'trained':<64} {'part':<15} tensors  parameters"]
    lines += [
        f"{name:<64} {part:<15} {counts[name, part]:7d}  {sizes[name, part]:10,d}"
        for name, part in sorted(counts)
    ]
    total = sum(p.numel() for p in model.parameters())
    trained = sum(sizes.values())
    return [*lines, f"{trained:,} of {total:,} parameters are trained ({100 * trained / total:.2f} %)"]
