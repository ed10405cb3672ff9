"""Ranks: start them, exchange small facts between them, spread a model over them."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwright.errors import BuildError

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of the run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def gather(self, fact: Any) -> list[Any]:
        """Return every rank's `fact`, in rank order, on every rank."""
        if self.world_size == 1:
            return [fact]
        facts: list[Any] = [None] * self.world_size
        dist.all_gather_object(facts, fact)
        return facts

    def agree(self, error: BaseException | None) -> None:
        """Raise on every rank if any rank brings an error.

        Raises:
            BuildError: Somebody failed; the first failure by rank is told.
        """
        errors = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        first = next((rank for rank, text in enumerate(errors) if text is not None), None)
        if first is None:
            return
        if isinstance(error, BuildError):
            raise error
        raise BuildError(
            f"rank {first}",
            found=str(errors[first]),
            expected="the same step to succeed on every rank",
            next_step="cure the cause on that rank's node and run the same command again",
        ) from error


def start_ranks(accelerator: str, expected_world_size: int) -> Ranks:
    """Join this process to its run.

    Args:
        accelerator: `gpu` or `cpu`.
        expected_world_size: Ranks that the config asks for, checked before anything heavy.

    Raises:
        BuildError: Another number of ranks was started, or this rank has no GPU.
    """
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != expected_world_size:
        raise BuildError(
            f"rank {rank}",
            found=f"{world_size} started ranks",
            expected=f"{expected_world_size} (train.nodes × train.ranks_per_node)",
            next_step="start this program through scripts/run_ranks.py, as the rule does",
        )
    device = _device(accelerator, int(os.environ.get("LOCAL_RANK", "0")))
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if world_size == 1 and "MASTER_PORT" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return Ranks(rank, world_size, device)


def _device(accelerator: str, local_rank: int) -> torch.device:
    if accelerator == "cpu":
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise BuildError(
            f"local rank {local_rank}",
            found=f"{num_gpus} GPUs that torch can use",
            expected="one GPU for each rank",
            next_step="check nvidia-smi and the torch build on this node, or lower train.ranks_per_node; "
            "for a CPU run set train.accelerator to cpu",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def make_deterministic(seed: int, device: torch.device, strict: bool) -> None:
    """Make equal inputs give equal bits on this machine; tests/test_train_resume.py is the proof.

    Args:
        seed: Seed of everything random before the first step.
        device: Where the model computes.
        strict: Use deterministic algorithms only. On the CPU an operation without one is an error;
            on a GPU it is a warning.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(strict, warn_only=device.type == "cuda")
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed dropout for one step: a function of (seed, step, rank), so resuming needs no RNG file."""
    torch.manual_seed((seed * 1_000_003 + step) * 4_099 + rank)


def spread(model: nn.Module, parallel: str, dtype: torch.dtype, ranks: Ranks) -> nn.Module:
    """Return what the loop calls in place of `model`: DDP around it, or itself sharded by FSDP2.

    Args:
        model: On its device, with `requires_grad` already set.
        parallel: `ddp` or `fsdp2`.
        dtype: Number format of the computation.
        ranks: This process among all.

    Raises:
        BuildError: FSDP2 cannot tell the blocks of this model.
    """
    if parallel == "ddp":
        if ranks.world_size == 1:
            return model
        ids = [ranks.device] if ranks.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in _blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _blocks(model: nn.Module) -> list[nn.Module]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        # As one piece the whole model would be gathered on each GPU at once.
        raise BuildError(
            f"fsdp2 of a {type(model).__name__}",
            found=f"no block of the kinds {sorted(names)} that the class names (_no_split_modules)",
            expected="blocks to shard one by one",
            next_step="set train.parallel to ddp, or take a transformers whose class names its blocks",
        )
    return blocks


@contextlib.contextmanager
def gradients_summed(model: nn.Module, last: bool) -> Iterator[None]:
    """Exchange gradients between ranks in this backward pass only if it is the step's last."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with contextlib.nullcontext() if last else model.no_sync():
            yield
        return
    if _is_sharded(model):
        model.set_requires_gradient_sync(last)
    yield


def _is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "set_requires_gradient_sync")


def forwardable(model: nn.Module) -> nn.Module:
    """What answers without a backward pass: FSDP2 gathers shards in its own forward, DDP is not needed."""
    return model if _is_sharded(model) else unwrapped(model)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP (FSDP2 shards in place and wraps nothing)."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as one rank sees it, gathered from all ranks if it is sharded (collective)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
