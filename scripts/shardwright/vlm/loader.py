"""Batches of a split for one rank, from a state that can be saved."""

from __future__ import annotations

import os
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from megatron.energon import __version__ as energon_version
from megatron.energon.epathlib import EPath
from megatron.energon.errors import FatalSampleError
from megatron.energon.flavors.webdataset.metadata import WebdatasetMeta

from shardwright.errors import BuildError
from shardwright.files import read_json
from shardwright.vlm.encoder import VLMTaskEncoder

DECLARATION = "shardwright.yaml"
META_FILES = (".info.json", "split.yaml", "index.sqlite", DECLARATION)
WATCHDOG_S = 600


def count_samples(dataset: Path, split: str) -> int:
    """Count a split's samples in the dataset's metadata.

    Raises:
        BuildError: A metadata file or tar is missing, another Energon wrote it, or there is no such split.
    """
    for name in META_FILES:
        if not (dataset / ".nv-meta" / name).is_file():
            raise BuildError(
                str(dataset / ".nv-meta" / name),
                found="no such file",
                expected="the metadata that index_dataset writes",
                next_step="build the target `dataset` again",
            )
    try:
        meta = WebdatasetMeta.from_config(EPath(dataset), split_part=split)
    except (AssertionError, KeyError, ValueError, OSError) as error:
        raise BuildError(
            f"split {split} of {dataset}",
            found=f"{type(error).__name__}: {error}",
            expected="a split that Energon can read",
            next_step="build the target `dataset` again",
        ) from error
    written_by = str(read_json(dataset / ".nv-meta/.info.json").get("energon_version"))
    if written_by.split(".")[0] != energon_version.split(".")[0]:
        raise BuildError(
            str(dataset / ".nv-meta/.info.json"),
            found=f"metadata of Energon {written_by}",
            expected=f"Energon {energon_version}, which reads it here",
            next_step="build the target `dataset` again with this environment",
        )
    return sum(shard.count for shard in meta.shards)


class Loader:
    """An Energon loader that gives plain dict batches and says what it lost.

    Args:
        loader: Energon's loader.
        source: The data's size and Energon's version, which decide the order, too.
        reader: How it reads.

    A state is only restored where source and reader are equal.

    Attributes:
        reader: Split, repetition, batch size, rank, ranks, workers, seed.
        drops: Samples lost so far by reason, this rank.
        adjusted: Samples changed so far by rule, this rank.
    """

    def __init__(self, loader: Any, source: dict[str, Any], reader: dict[str, Any]) -> None:
        self._loader = loader
        self.reader = reader
        self._deciding = {**source, **reader}
        self._begun = False
        self.drops: Counter[str] = Counter()
        self.adjusted: Counter[str] = Counter()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._begun = True
        try:
            for batch in self._loader:
                self.drops.update(batch["drops"])
                self.adjusted.update(batch["adjusted"])
                if batch["uids"]:
                    yield {key: value for key, value in batch.items() if not key.startswith("__")}
        except FatalSampleError as error:
            raise self._failed(
                error,
                "samples that can be read and encoded",
                "the lines `dropped …` above name samples and rules; `data` in the config holds the limits",
            ) from error
        except (OSError, tarfile.TarError, ValueError) as error:
            # Energon tells a tar cut short by ValueError, as others tell quite other things.
            if not isinstance(error, ValueError) or ".tar" in str(error):
                expected, next_step = "tars as they were indexed", "build the target `dataset` again"
            else:
                expected = "batches that the processor and torch can make"
                next_step = "report this with the log: the dataset need not be at fault"
            raise self._failed(error, expected, next_step) from error
        except RuntimeError as error:
            raise self._failed(
                error,
                "loader processes that live",
                "see the log above; if one was killed, lower train.loader_workers or ask for more memory",
            ) from error

    def _failed(self, error: Exception, expected: str, next_step: str) -> BuildError:
        told = f"{type(error).__name__}: {error}"
        return BuildError(
            f"reading split {self.reader['split']}", found=told, expected=expected, next_step=next_step
        )

    def close(self) -> None:
        """End the worker processes; a loader that is forgotten does so, too.

        Left to the garbage collector, torch waits 5 s for each of them and then kills it.
        """
        workers = getattr(self._loader, "_iterator", None)
        if workers is not None:
            workers._shutdown_workers()

    __del__ = close

    def save_state_rank(self) -> dict[str, Any]:
        """The place in the data, to be saved with a checkpoint of this rank."""
        place = self._loader.save_state_rank()
        counts = {"drops": dict(self.drops), "adjusted": dict(self.adjusted)}
        return {"reader": self._deciding, "place": place, **counts}

    def restore_state_rank(self, state: dict[str, Any]) -> None:
        """Go on from a saved place; before the first batch only.

        Raises:
            BuildError: The state is another reader's: its order would not go on here.
        """
        assert not self._begun, "restore before the first batch"
        saved = state["reader"]
        own = self._deciding
        changed = [key for key in sorted({*saved, *own}) if saved.get(key) != own.get(key)]
        if changed:
            raise BuildError(
                "loader state",
                found=", ".join(f"{key} {saved.get(key)}" for key in changed),
                expected=", ".join(f"{key} {own.get(key)}" for key in changed),
                next_step="resume with what the state was saved with, or start a new run",
            )
        self._loader.restore_state_rank(state["place"])
        self.drops, self.adjusted = Counter(state["drops"]), Counter(state["adjusted"])


def build_loader(
    dataset: Path,
    split: str,
    encoder: VLMTaskEncoder,
    *,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    seed: int = 0,
    repeat: bool = True,
) -> Loader:
    """Make the loader of one rank.

    Args:
        dataset: The folder with the tars and `.nv-meta`.
        split: `train` or `val`.
        encoder: Makes batches of samples.
        micro_batch_size: Samples in a batch; the last one of a finite read may have fewer.
        rank: This reader among all.
        world_size: All readers.
        num_workers: Processes that read for this rank; 0 reads in this one.
        seed: Decides the order of a repeated, shuffled read.
        repeat: Read for ever in shuffled order (training), or once, in order, every sample.

    Raises:
        BuildError: The split is missing or empty, or smaller than the readers of a repeated read.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    num_samples = count_samples(dataset, split)
    num_readers = world_size * max(1, num_workers)
    if num_samples < (num_readers if repeat else 1):
        raise BuildError(
            f"split {split} of {dataset}",
            found=f"{num_samples} samples",
            expected=f"at least {num_readers if repeat else 1}"
            + (f", one for each of {world_size} ranks × {max(1, num_workers)} workers" * repeat),
            next_step="use fewer ranks or train.loader_workers, or build a larger split",
        )
    config = WorkerConfig(
        rank=rank,
        world_size=world_size,
        num_workers=num_workers,
        seed_offset=seed,
        global_error_handler=encoder.count_error,
    )
    common = {
        "split_part": split,
        "dataset_config": DECLARATION,
        "worker_config": config,
        "batch_size": micro_batch_size,
        "task_encoder": encoder,
    }
    if repeat:
        data = get_train_dataset(
            EPath(dataset),
            shuffle_buffer_size=encoder.limits.shuffle_buffer_size or None,
            max_samples_per_sequence=encoder.limits.max_samples_per_sequence,
            **common,
        )
    else:
        data = get_val_dataset(EPath(dataset), **common)
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    loader = get_savable_loader(data, watchdog_timeout_seconds=WATCHDOG_S)
    source = {"num_samples": num_samples, "energon_version": energon_version}
    reader = {
        "split": split,
        "repeat": repeat,
        "micro_batch_size": micro_batch_size,
        "rank": rank,
        "world_size": world_size,
        "num_workers": num_workers,
        "seed": seed,
    }
    return Loader(loader, source, reader)
