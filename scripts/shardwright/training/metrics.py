"""Metrics: one JSON line a record, the same numbers to TensorBoard and W&B, a progress line."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwright.errors import BuildError
from shardwright.files import replacing


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the whole records of a metrics file; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


class MetricsLog:
    """Appends records of one run; opened at a step, it forgets what came after that step.

    Args:
        path: The JSON lines file.
        start_step: Optimizer steps done so far: records of later steps are from a run that was cut
            short before it saved, and will be made again.
        tensorboard: Folder for TensorBoard events, or None.
        wandb_project: Weights & Biases project, or empty.
        run: Name of the run there, which no other run may have.
    """

    def __init__(
        self, path: Path, start_step: int, tensorboard: Path | None, wandb_project: str, run: str
    ) -> None:
        kept = [record for record in read_records(path) if record["step"] <= start_step]
        with replacing(path) as scratch:
            scratch.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        self._seen = {(record["kind"], record["step"]) for record in kept}
        self._stream = path.open("a", encoding="utf-8")
        self._open_board = _board_opener(tensorboard, start_step) if tensorboard else None
        self._board: Any = None
        self._wandb = _open_wandb(wandb_project, run) if wandb_project else None

    def has(self, kind: str, step: int) -> bool:
        """Whether a record of this kind and step is there already."""
        return (kind, step) in self._seen

    def record(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write one record; `step` is the number of optimizer steps done."""
        self._seen.add((kind, step))
        self._stream.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._stream.flush()
        numbers = {f"{kind}/{key}": v for key, v in values.items() if isinstance(v, (int, float))}
        if self._open_board:
            # Opened by the first record: a run that was finished before leaves no empty file of events.
            self._board = self._board or self._open_board()
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Flush and close everything."""
        self._stream.close()
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def _board_opener(folder: Path, start_step: int) -> Callable[[], Any]:
    from torch.utils.tensorboard import SummaryWriter  # here, so that a lack of it is told before training

    return functools.partial(SummaryWriter, str(folder), purge_step=start_step + 1)


def _open_wandb(project: str, run: str) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise BuildError(
            "config train.wandb_project",
            found=f"{project!r}, but wandb cannot be imported ({error})",
            expected="the wandb package in this environment",
            next_step="install wandb, or leave train.wandb_project empty",
        ) from None
    return wandb.init(project=project, name=run, id=run, resume="allow")


class Progress:
    """Prints a line now and then: step, loss, rate, share of time spent waiting for data, time left."""

    def __init__(self, steps: int, start_step: int, every: int) -> None:
        self._steps, self._every = steps, every
        self._start_step = start_step
        self._start = self._since = time.monotonic()
        self._tokens = 0
        self._waited = 0.0

    def show(self, step: int, values: dict[str, Any]) -> None:
        """Count one step in; print when it is time."""
        self._tokens += values["num_tokens"]
        self._waited += values["data_wait_s"]
        if step % self._every and step != self._steps:
            return
        now = time.monotonic()
        elapsed = max(now - self._since, 1e-9)
        left = (now - self._start) / (step - self._start_step) * (self._steps - step)
        print(
            f"step {step}/{self._steps}  loss {values['loss']:.4f}  lr {values['learning_rate']:.2e}  "
            f"grad {values['grad_norm']:.3g}  {self._tokens / elapsed:,.0f} tokens/s  "
            f"data wait {100 * self._waited / elapsed:.0f} %  left {int(left) // 60}:{int(left) % 60:02d}",
            flush=True,
        )
        self._since, self._tokens, self._waited = now, 0, 0.0
