"""The running state of a run: one folder a checkpoint, published by rename, the last K kept.

    state/<fingerprint>/step-00000100/
        tensors/            trained tensors and optimizer moments (torch distributed checkpoint)
        rank-00000.pt       that rank's loader state and counters
        checkpoint.json     step, topology, size of every file; written last

The learning rate and dropout are functions of the step, so nothing else is needed to resume.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from shardwright.errors import BuildError
from shardwright.files import fsync_dir, read_json
from shardwright.training.parallel import Ranks, unwrapped

STEP_FOLDER = re.compile(r"step-(\d{8})")


def trained_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that training changes, by qualified name."""
    return {
        name: parameter.detach()
        for name, parameter in unwrapped(model).named_parameters()
        if parameter.requires_grad
    }


def _all_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in trained_tensors(model).items()}
    for name, parameter in unwrapped(model).named_parameters():
        if parameter.requires_grad:
            for key, value in optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The published checkpoints of a state folder as (step, path), oldest first."""
    found = []
    for path in folder.glob("step-*"):
        match = STEP_FOLDER.fullmatch(path.name)
        if match and (path / "checkpoint.json").exists():
            found.append((int(match[1]), path))
    return sorted(found)


class Checkpoints:
    """Saves and restores one run's state.

    Args:
        folder: The run's state folder, shared by all ranks.
        ranks: This process among all.
        num_workers: Loader processes of each rank.
        keep_last: Published checkpoints to keep.
    """

    def __init__(self, folder: Path, ranks: Ranks, num_workers: int, keep_last: int) -> None:
        self.folder = folder
        self._ranks = ranks
        self._topology = {"num_ranks": ranks.world_size, "num_workers": num_workers}
        self._keep_last = keep_last

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, rank_state: dict[str, Any]
    ) -> Path:
        """Publish the state after `step` optimizer steps (collective); a second save is a no-op.

        Args:
            step: Optimizer steps done.
            model: As the loop calls it.
            optimizer: Its optimizer.
            rank_state: What only this rank knows (loader state, counters).

        Raises:
            BuildError: Some rank could not write; the earlier checkpoints are untouched.
        """
        target = self.folder / f"step-{step:08d}"
        if any(self._ranks.gather((target / "checkpoint.json").exists())):
            return target
        scratch = self.folder / f".step-{step:08d}.part"
        self._attempt(lambda: self._clean(scratch))
        try:
            self._attempt(lambda: self._write(scratch, model, optimizer, rank_state))
            self._attempt(lambda: self._publish(scratch, target, step))
        finally:
            if self._ranks.is_first:
                shutil.rmtree(scratch, ignore_errors=True)
        return target

    def _attempt(self, work: Any) -> None:
        failure: BaseException | None = None
        try:
            work()
        except (OSError, RuntimeError, CheckpointException) as error:
            failure = _save_failure(self.folder, error)
        self._ranks.agree(failure)

    def _clean(self, scratch: Path) -> None:
        if self._ranks.is_first:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)

    def _write(self, scratch: Path, model: nn.Module, optimizer: Any, rank_state: dict[str, Any]) -> None:
        writer = dcp.FileSystemWriter(scratch / "tensors", sync_files=True)
        dcp.save(_all_tensors(model, optimizer), storage_writer=writer)
        with (scratch / f"rank-{self._ranks.rank:05d}.pt").open("wb") as stream:
            torch.save(rank_state, stream)
            os.fsync(stream.fileno())

    def _publish(self, scratch: Path, target: Path, step: int) -> None:
        if not self._ranks.is_first:
            return
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        about = {
            "step": step,
            **self._topology,
            "bytes": {str(path.relative_to(scratch)): path.stat().st_size for path in files},
        }
        with (scratch / "checkpoint.json").open("w") as stream:
            json.dump(about, stream, indent=2, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        fsync_dir(scratch)
        scratch.rename(target)
        fsync_dir(self.folder)
        for _, old in list_checkpoints(self.folder)[: -self._keep_last]:
            shutil.rmtree(old)

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, dict[str, Any]] | None:
        """Load the newest checkpoint into `model` and `optimizer` (collective).

        Returns:
            (steps done, this rank's state), or None where there is no checkpoint.

        Raises:
            BuildError: It is damaged, or from another number of ranks or loader workers.
        """
        found = list_checkpoints(self.folder)
        newest = self._ranks.gather(found[-1][0] if found else None)[0]
        if newest is None:
            return None
        path = self.folder / f"step-{newest:08d}"
        about = _checked(path, self._topology)
        tensors = _all_tensors(model, optimizer)
        dcp.load(tensors, storage_reader=dcp.FileSystemReader(path / "tensors"))
        # Written by this program into its own folder, so a pickle is fine; Energon's state needs one.
        rank_state = torch.load(path / f"rank-{self._ranks.rank:05d}.pt", weights_only=False)
        return about["step"], rank_state


def _save_failure(folder: Path, error: BaseException) -> BuildError:
    if isinstance(error, CheckpointException):
        causes = [cause[0] if isinstance(cause, tuple) else cause for cause in error.failures.values()]
        error = causes[0] if causes else error
    free = shutil.disk_usage(folder).free // 2**20
    return BuildError(
        str(folder),
        found=f"{type(error).__name__}: {error} while saving ({free} MiB free there)",
        expected="room for one more checkpoint",
        next_step="free some space and run the same command again: it resumes from the last good checkpoint",
    )


def _checked(path: Path, topology: dict[str, int]) -> dict[str, Any]:
    about = read_json(path / "checkpoint.json")
    saved = {key: about[key] for key in topology}
    if saved != topology:
        raise BuildError(
            str(path),
            found=f"a state of {saved['num_ranks']} ranks × {saved['num_workers']} loader workers",
            expected=f"{topology['num_ranks']} × {topology['num_workers']}, as the config asks now; "
            "the loader's place in the data cannot be split another way",
            next_step="resume with train.nodes × train.ranks_per_node and train.loader_workers as they were, "
            "or start afresh under another train.run",
        )
    for name, size in sorted(about["bytes"].items()):
        file = path / name
        found = file.stat().st_size if file.exists() else None
        if found != size:
            raise BuildError(
                str(file),
                found="no file" if found is None else f"{found} bytes",
                expected=f"{size} bytes",
                next_step=f"remove the folder {path}: the run resumes from the checkpoint before it",
            )
    return about
