"""Reads a dataset with Megatron-Energon alone, through shardwright.yaml, without decoding."""

from __future__ import annotations

from pathlib import Path

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)


@edataclass
class RawExample(Sample):
    """The two parts of a sample, as bytes."""

    image: bytes
    conversation: bytes


@stateless
def cook(sample: dict) -> RawExample:
    """Name the parts."""
    return RawExample(
        **basic_sample_keys(sample), image=sample["image.jpg"], conversation=sample["conversation.json"]
    )


class BytesEncoder(DefaultTaskEncoder):
    """Hands the samples on as they are."""

    decoder = None
    cookers = [Cooker(cook)]  # noqa: RUF012 (the attribute that Energon looks for)


def read_all(dataset: Path, split: str) -> list[RawExample]:
    """Return every sample of a split, each once."""
    found = get_train_dataset(
        dataset,
        split_part=split,
        dataset_config="shardwright.yaml",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=BytesEncoder(),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    return list(get_loader(found))
