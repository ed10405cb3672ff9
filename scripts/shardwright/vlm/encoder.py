"""Energon samples → what the model reads, one sample at a time, so that a bad one costs only itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from megatron.energon import Cooker, CrudeSample, Sample, SkipSample, TaskEncoder, basic_sample_keys
from megatron.energon.edataclass import edataclass
from megatron.energon.errors import FatalSampleError
from megatron.energon.task_encoder.base import stateless
from megatron.energon.worker import WorkerConfig
from megatron.energon.wrappers.base import BaseWrapperDataset
from megatron.energon.wrappers.repeat_dataset import RepeatDataset

from shardwright.vlm import budgets
from shardwright.vlm.budgets import Dropped, Limits, fit_pixels, open_image, set_pixel_limits
from shardwright.vlm.packing import pack_rows
from shardwright.vlm.shuffling import ShuffleWithinEpoch
from shardwright.vlm.supervision import IGNORED, ChatFormat, read_turns, spread_videos

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")
CONVERSATION = "conversation.json"
MAX_DROPS_IN_A_ROW = 500
MAX_TOLD_DROPS = 100
# Energon takes note of every error it survives, but only its own handler is told: ours counts.
ONE_FAILURE_IS_FATAL = 1


@edataclass
class RawSample(Sample):
    """A sample as it lies in the tar: bytes."""

    images: list[bytes]
    conversation: bytes


@edataclass
class EncodedSample(Sample):
    """A sample as the model reads it. `visual` holds pixel_values and image_grid_thw, or nothing."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    mm_token_type_ids: torch.Tensor
    visual: dict[str, torch.Tensor]


@stateless
def cook(sample: CrudeSample) -> RawSample:
    """Take the members of a sample by their names; images in order of name."""
    names = sorted(name for name in sample if name.rpartition(".")[2] in IMAGE_SUFFIXES)
    return RawSample(
        **basic_sample_keys(sample),
        images=[sample[name] for name in names],
        conversation=sample.get(CONVERSATION, b""),
    )


class VLMTaskEncoder(TaskEncoder):
    """Encodes conversations with one image or more by the model's own processor and chat template.

    Args:
        processor: The imported model's processor; its pixel limits are set here.
        limits: The config's `data` section.
        pack: Join the samples of a micro batch into one row.

    Raises:
        BuildError: The chat template cannot be cut at its answers, or a pixel limit does not hold.
    """

    decoder = None  # bytes come through; an image is decoded here, under a named rule
    cookers = (Cooker(cook),)

    def __init__(self, processor: Any, limits: Limits, pack: bool = False) -> None:
        self.processor = processor
        self.limits = limits
        self.pack = pack
        self.chat = ChatFormat(processor, limits.control_tokens)
        set_pixel_limits(processor, limits)
        pad = processor.tokenizer.pad_token_id
        self._pad_id = pad if pad is not None else self.chat.end_of_turn
        self._drops: Counter[str] = Counter()
        self._adjusted: Counter[str] = Counter()
        self._dropped_uids: list[tuple[str, str]] = []
        self._in_a_row = 0
        self._num_told = 0

    def encode(self, raw: RawSample) -> EncodedSample:
        """Encode one sample.

        Raises:
            Dropped: A named rule speaks against it.
        """
        turns = read_turns(raw.conversation)
        turns, members, num_thinned = spread_videos(turns, raw.images, self.limits)
        images = [open_image(data, self.limits) for data in members]
        texts, words, num_broken = self.chat.split(turns)
        encoded = [self.chat.encode_answer(word) for word in words]
        answers = [ids for ids, _ in encoded]
        prompts = sum(len(self.chat.encode(text)) for text in texts[:-1])
        num_text = prompts - len(images) + sum(len(ids) for ids in answers) + 1  # one end of turn
        pixels, shrunk = fit_pixels(
            self.processor.image_processor, [image.size for image in images], num_text, self.limits
        )
        ids, labels, visual = self._join(texts, answers, images, pixels)
        self._adjusted[budgets.NEUTRALISED_CONTROL_TOKEN] += bool(num_broken) or any(
            spelled_out for _, spelled_out in encoded
        )
        self._adjusted[budgets.THINNED_FRAMES] += num_thinned
        if shrunk:
            self._adjusted[shrunk] += 1
        input_ids = torch.tensor(ids)
        return EncodedSample.derive_from(
            raw,
            input_ids=input_ids,
            labels=torch.tensor(labels),
            mm_token_type_ids=(input_ids == self.processor.image_token_id).long(),
            visual=visual,
        )

    def _join(
        self, texts: list[str], answers: list[list[int]], images: list[Any], max_pixels: int
    ) -> tuple[list[int], list[int], dict[str, torch.Tensor]]:
        """Tokens and labels of texts and answers in turn; the last text gives its end-of-turn only."""
        ids: list[int] = []
        labels: list[int] = []
        visual: list[dict[str, torch.Tensor]] = []
        waiting = list(images)
        for place, text in enumerate(texts):
            count = text.count(self.processor.image_token)
            own, waiting = waiting[:count], waiting[count:]
            if own:
                part, seen = self._see(text, own, max_pixels)
                visual.append(seen)
            else:
                part = self.chat.encode(text)
            if place == len(texts) - 1:
                part = part[:1]
            ids += part
            labels += [part[0] if place else IGNORED, *[IGNORED] * (len(part) - 1)]
            if place < len(answers):
                ids += answers[place]
                labels += answers[place]
        merged = {name: torch.cat([seen[name] for seen in visual]) for name in visual[0]}
        return ids, labels, merged

    def _see(
        self, text: str, images: list[Any], max_pixels: int
    ) -> tuple[list[int], dict[str, torch.Tensor]]:
        """Run the model's processor on one rendered text with its images."""
        size = {"shortest_edge": self.limits.min_pixels, "longest_edge": max_pixels}
        made = self.processor(
            text=[text],
            images=images,
            images_kwargs={"size": size},
            text_kwargs={"padding": False, "truncation": False, "add_special_tokens": False},
            return_tensors="pt",
        )
        return made["input_ids"][0].tolist(), {
            "pixel_values": made["pixel_values"],
            "image_grid_thw": made["image_grid_thw"],
        }

    @stateless
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        """Encode one sample, or count why not (Energon's form of `encode`)."""
        try:
            encoded = self.encode(sample)
        except Dropped as dropped:
            self._count(sample.__key__, dropped.reason, str(dropped))
            raise SkipSample from dropped
        self._in_a_row = 0
        return encoded

    def count_error(self, error: Exception, sample: Any, sources: Any) -> None:
        """Count a sample that Energon lost (its error handler); a lost batch ends the run.

        Raises:
            FatalSampleError: What failed was a whole batch.
        """
        if isinstance(sample, list):
            raise FatalSampleError(f"a whole batch failed: {type(error).__name__}: {error}") from error
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        self._count(str(key or sources or "?"), budgets.LOADER_ERROR, f"{type(error).__name__}: {error}")

    def _count(self, key: str, reason: str, told: str) -> None:
        self._drops[reason] += 1
        self._dropped_uids.append((key, reason))
        self._in_a_row += 1
        if self._num_told < MAX_TOLD_DROPS:
            self._num_told += 1
            print(f"dropped {key}: {told}", flush=True)
        if self._in_a_row >= MAX_DROPS_IN_A_ROW:
            raise FatalSampleError(f"{self._in_a_row} samples in a row dropped; the last one {key}: {told}")

    @stateless(failure_tolerance=ONE_FAILURE_IS_FATAL)
    def batch(self, samples: list[EncodedSample]) -> dict[str, Any]:
        """Make one batch: padded rows, or one packed row."""
        rows = [
            {
                "input_ids": sample.input_ids,
                "labels": sample.labels,
                "mm_token_type_ids": sample.mm_token_type_ids,
                "grids": sample.visual["image_grid_thw"][:, 1:].tolist(),
            }
            for sample in samples
        ]
        merge_size = self.processor.image_processor.merge_size
        tensors = pack_rows(rows, merge_size) if self.pack else pad_rows(rows, self._pad_id)
        for name in samples[0].visual:
            tensors[name] = torch.cat([sample.visual[name] for sample in samples])
        return {
            **tensors,
            "uids": [sample.__key__ for sample in samples],
            "num_supervised": torch.stack([(sample.labels != IGNORED).sum() for sample in samples]),
            **self.counted(),
            "__key__": [sample.__key__ for sample in samples],
            "__restore_key__": (),
        }

    def counted(self) -> dict[str, Any]:
        """What was dropped and adjusted since the last batch of this reader; starts counting anew."""
        told = {
            "drops": dict(self._drops),
            "adjusted": {name: count for name, count in self._adjusted.items() if count},
            "dropped": list(self._dropped_uids),
        }
        self._drops, self._adjusted, self._dropped_uids = Counter(), Counter(), []
        return told

    def build_train_datasets(
        self,
        *,
        datasets: list[Any],
        worker_config: WorkerConfig,
        batch_size: int,
        shuffle_buffer_size: int | None,
        **_: Any,
    ) -> Any:
        """The endless stream of one reader: shuffled within each epoch, then encoded and batched."""
        [loaded] = datasets
        data = self._load_dataset(loaded, 0, worker_config=worker_config)
        if shuffle_buffer_size:
            data = ShuffleWithinEpoch(data, size=shuffle_buffer_size, worker_config=worker_config)
        data = RepeatDataset(data, worker_config=worker_config)
        data = self.build_encode_sample(data, worker_config=worker_config)
        return self.build_batch(data, batch_size=batch_size, worker_config=worker_config)

    def build_val_datasets(self, **kwargs: Any) -> Any:
        """As Energon's, and the drops behind the last batch are told, too."""
        dataset = super().build_val_datasets(**kwargs)
        return WithLastDrops(dataset, self, worker_config=kwargs["worker_config"])


class WithLastDrops(BaseWrapperDataset):
    """Ends a finite stream of batches with one that has no samples, only the counts since the last."""

    def __init__(self, dataset: Any, encoder: VLMTaskEncoder, *, worker_config: Any) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self._encoder = encoder

    def reset_state_own(self) -> None:
        """Nothing is kept between batches."""

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Batches of one worker."""
        return self.dataset.len_worker(worker_idx)

    def __iter__(self) -> Any:
        yield from self.dataset
        counted = self._encoder.counted()
        if counted["drops"] or counted["adjusted"]:
            yield {"uids": [], **counted, "__key__": [], "__restore_key__": ()}

    def config(self) -> dict[str, Any]:
        """For Energon's comparison of datasets."""
        return {"type": type(self).__qualname__, "dataset": self.dataset.config()}


def pad_rows(rows: list[dict[str, Any]], pad_id: int) -> dict[str, torch.Tensor]:
    """Put samples under each other, padded on the right to the longest."""
    fillers = {"input_ids": pad_id, "labels": IGNORED, "mm_token_type_ids": 0}
    padded = {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, filler)
        for name, filler in fillers.items()
    }
    lengths = torch.tensor([[len(row["input_ids"])] for row in rows])
    width = padded["input_ids"].shape[1]
    return {**padded, "attention_mask": (torch.arange(width) < lengths).long()}
