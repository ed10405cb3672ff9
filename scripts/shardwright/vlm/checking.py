"""Real batches of a dataset through the real processor, compared with what lies in the tars."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from megatron.energon import __version__ as energon_version
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.indexing import SqliteIndexReader

from shardwright.errors import BuildError
from shardwright.files import read_json
from shardwright.vlm.encoder import CONVERSATION, VLMTaskEncoder
from shardwright.vlm.loader import build_loader
from shardwright.vlm.packing import check_can_pack, pack_rows
from shardwright.vlm.supervision import IGNORED

MAX_FAULTS = 20


class StoredAnswers:
    """The answers as they lie in the tars, found through Energon's index; no part of the encoder."""

    def __init__(self, dataset: Path) -> None:
        info = read_json(dataset / ".nv-meta/.info.json")
        self._dataset = dataset
        self._tars = list(info["shard_counts"])
        self._index = SqliteIndexReader(EPath(dataset / ".nv-meta/index.sqlite"))

    def __enter__(self) -> StoredAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def __getitem__(self, uid: str) -> list[str]:
        part = self._index.get_sample_part(uid, CONVERSATION)
        with (self._dataset / self._tars[part.tar_file_id]).open("rb") as tar:
            tar.seek(part.raw_byte_offset)
            turns = json.loads(tar.read(part.raw_byte_size))["conversation"]
        said = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        return [text if isinstance(text, str) else "".join(part["text"] for part in text) for text in said]


def spread_of(values: Iterable[int]) -> dict[str, float]:
    """Smallest, mean and largest of some numbers."""
    numbers = list(values)
    return {"min": min(numbers), "mean": round(sum(numbers) / len(numbers), 2), "max": max(numbers)}


class BatchCheck:
    """Checks the batches of one split and sums up what they hold.

    Args:
        encoder: The encoder that made them.
        stored: What the answers should be.
        vocab_size: Tokens that the model embeds.
    """

    def __init__(self, encoder: VLMTaskEncoder, stored: StoredAnswers, vocab_size: int) -> None:
        self._encoder = encoder
        self._stored = stored
        self._vocab_size = vocab_size
        self.faults: list[str] = []
        self.tokens: list[int] = []
        self.supervised: list[int] = []
        self.visual: list[int] = []
        self.grids: list[list[int]] = []
        self.shapes: list[dict[str, list[int]]] = []
        self.example: dict[str, Any] = {}
        self._num_packed = 0

    def add(self, batch: dict[str, Any]) -> None:
        """Check one batch of padded rows."""
        shapes = {name: list(value.shape) for name, value in batch.items() if isinstance(value, torch.Tensor)}
        self.shapes.append(shapes)
        merge = self._encoder.processor.image_processor.merge_size
        grids = batch["image_grid_thw"].tolist()
        image_tokens = [time * height * width // merge**2 for time, height, width in grids]
        is_image = batch["input_ids"] == self._encoder.processor.image_token_id
        if sum(image_tokens) != int(is_image.sum()):
            self._fault(batch["uids"], f"{int(is_image.sum())} image tokens for {sum(image_tokens)} features")
        if int(batch["image_grid_thw"].prod(1).sum()) != len(batch["pixel_values"]):
            self._fault(batch["uids"], f"{len(batch['pixel_values'])} patches for the grids {grids[:8]}")
        if int(batch["input_ids"].max()) >= self._vocab_size:
            self._fault(batch["uids"], f"token {int(batch['input_ids'].max())} of {self._vocab_size}")
        self.grids += grids
        self._num_packed += self._packed_size(batch, image_tokens)
        for row, uid in enumerate(batch["uids"]):
            length = int(batch["attention_mask"][row].sum())
            ids, labels = batch["input_ids"][row, :length], batch["labels"][row, :length]
            self._add_row(uid, ids, labels, int(is_image[row].sum()))

    def _packed_size(self, batch: dict[str, Any], image_tokens: list[int]) -> int:
        """Tokens of the row that packing makes of this batch."""
        rows, waiting = [], list(zip(batch["image_grid_thw"].tolist(), image_tokens, strict=True))
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            own = {name: batch[name][row, :length] for name in ("input_ids", "labels", "mm_token_type_ids")}
            missing, grids = int(own["mm_token_type_ids"].sum()), []
            while missing > 0 and waiting:
                grid, count = waiting.pop(0)
                grids.append(grid[1:])
                missing -= count
            rows.append({**own, "grids": grids})
        return pack_rows(rows, self._encoder.processor.image_processor.merge_size)["input_ids"].numel()

    def _add_row(self, uid: str, ids: torch.Tensor, labels: torch.Tensor, num_visual: int) -> None:
        limits, chat = self._encoder.limits, self._encoder.chat
        supervised = labels[labels != IGNORED].tolist()
        said = chat.decode(supervised)
        end = chat.decode([chat.end_of_turn])
        expected = "".join(chat.normalize(answer) + end for answer in self._stored[uid])
        if not supervised:
            self._fault([uid], "no supervised token")
        elif said != expected:
            self._fault([uid], f"{said[:80]!r} supervised, not {expected[:80]!r}")
        if len(ids) > limits.seq_length or num_visual > limits.max_visual_tokens:
            self._fault([uid], f"{len(ids)} tokens, {num_visual} of them visual: above the limits")
        self.tokens.append(len(ids))
        self.supervised.append(len(supervised))
        self.visual.append(num_visual)
        if not self.example:
            image = chat.decode([self._encoder.processor.image_token_id])
            whole = chat.decode(ids.tolist()).replace(image * num_visual, f"{image} × {num_visual}")
            self.example = {"uid": uid, "whole": whole, "supervised": said}

    def _fault(self, uids: list[str], what: str) -> None:
        self.faults.append(f"{', '.join(uids[:4])}: {what}")

    def summary(self) -> dict[str, Any]:
        """Counts over all batches."""
        widths = [shape["input_ids"] for shape in self.shapes]
        padded = sum(rows * width for rows, width in widths)
        return {
            "num_batches": len(self.shapes),
            "num_samples": len(self.tokens),
            "shapes": self.shapes[:4],
            "tokens": spread_of(self.tokens),
            "supervised_tokens": spread_of(self.supervised),
            "visual_tokens": spread_of(self.visual),
            "grid_height": spread_of(grid[1] for grid in self.grids),
            "grid_width": spread_of(grid[2] for grid in self.grids),
            "tokens_per_padded_token": {
                "rows": round(sum(self.tokens) / padded, 4),
                "packed": round(sum(self.tokens) / self._num_packed, 4),
            },
            "example": self.example,
        }


def check_split(
    dataset: Path,
    split: str,
    encoder: VLMTaskEncoder,
    vocab_size: int,
    micro_batch_size: int,
    num_batches: int,
) -> tuple[dict[str, Any], list[str]]:
    """Read batches of one split as training does and check each.

    Returns:
        The split's summary, and its faults.
    """
    loader = build_loader(dataset, split, encoder, micro_batch_size=micro_batch_size, repeat=split == "train")
    with StoredAnswers(dataset) as stored:
        check = BatchCheck(encoder, stored, vocab_size)
        for batch in itertools.islice(loader, num_batches):
            check.add(batch)
    if not check.tokens:
        return {"drops": dict(loader.drops)}, [f"{split}: no sample left, dropped {dict(loader.drops)}"]
    told = {"drops": dict(loader.drops), "adjusted": dict(loader.adjusted)}
    return {**check.summary(), **told}, [f"{split}, {fault}" for fault in check.faults]


def check_model_limits(config: Any, seq_length: int) -> dict[str, Any]:
    """What the model itself can take.

    Raises:
        BuildError: Samples may be longer than the positions that the model was trained with.
    """
    text = config.get_text_config()
    if seq_length > text.max_position_embeddings:
        raise BuildError(
            "config key data.seq_length",
            found=str(seq_length),
            expected=f"at most {text.max_position_embeddings}, the model's max_position_embeddings",
            next_step="lower data.seq_length",
        )
    return {"max_position_embeddings": text.max_position_embeddings, "vocab_size": text.vocab_size}


def check_dataset(
    dataset: Path,
    splits: list[str],
    encoder: VLMTaskEncoder,
    config: Any,
    micro_batch_size: int,
    num_batches: int,
) -> dict[str, Any]:
    """Check batches of each split; `faults` in the report tells what is wrong."""
    limits = check_model_limits(config, encoder.limits.seq_length)
    report: dict[str, Any] = {"energon_version": energon_version, "model_limits": limits, "splits": {}}
    try:
        check_can_pack(config, max(2, micro_batch_size))
        report["packing"] = "possible"
    except BuildError as refusal:
        report["packing"] = f"refused: {refusal.found}"
    faults: list[str] = []
    for split in splits:
        found = check_split(dataset, split, encoder, limits["vocab_size"], micro_batch_size, num_batches)
        report["splits"][split] = found[0]
        faults += found[1]
    report["faults"] = faults[:MAX_FAULTS]
    report["num_faults"] = len(faults)
    return report
