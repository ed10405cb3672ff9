"""Shuffling within an epoch: each reader gives every sample of its share once before any again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megatron.energon.wrappers.shuffle_buffer_dataset import ShuffleBufferDataset


class ShuffleWithinEpoch(ShuffleBufferDataset):
    """A shuffle buffer over a finite stream, which can be saved while it runs dry.

    Energon's own buffer must wrap an endless stream: restored at the end of a finite one, it would
    fill up from the next epoch. So in Energon's recipe samples of neighbouring epochs mix, over as many
    epochs as the buffer is larger than a reader's share.
    """

    _savable_fields = (*ShuffleBufferDataset._savable_fields, "_runs_dry")

    def reset_state_own(self) -> None:
        """Start empty, at the beginning of the stream."""
        super().reset_state_own()
        self._runs_dry = False

    def __iter__(self) -> Iterator[Any]:
        buffer = self._active_buffer
        buffer.worker_start()
        if not self._runs_dry:
            for _ in buffer.append_iter():
                if buffer.len_worker() >= self.size:
                    yield self._draw()
            self._runs_dry = True
        while buffer.len_worker():
            yield self._draw()
        self._runs_dry = False

    def _draw(self) -> Any:
        return self._active_buffer.pop(self._worker_rng.randbelow(self._active_buffer.len_worker()))
