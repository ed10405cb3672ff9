"""What a run reads: the dataset and its loaders, the imported model and its processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.files import read_json, sha256_file


@dataclass(frozen=True)
class Sources:
    """Files that a run reads, and how samples are turned into batches.

    Args:
        manifest: The dataset's manifest.
        import_report: `models/<model>/import.json`; the weights lie in `import/` beside it.
        limits: Budgets of a sample (see config/schema/data.yaml).
        targets: Endings of the linear modules that get an adapter.
        target_parameters: Endings of fused-expert parameters that get one.
    """

    manifest: Path
    import_report: Path
    limits: dict[str, Any]
    targets: list[str]
    target_parameters: list[str]

    @property
    def dataset(self) -> Path:
        """The Energon dataset folder."""
        return self.manifest.parent

    @property
    def import_dir(self) -> Path:
        """The imported weights and processor."""
        return self.import_report.parent / "import"

    def split_counts(self) -> dict[str, int]:
        """Samples of each split, as the manifest lists its tars."""
        counts: Counter[str] = Counter()
        for tar in read_json(self.manifest)["tars"]:
            counts[tar["split"]] += tar["samples"]
        return dict(counts)

    def model_facts(self) -> dict[str, Any]:
        """Repository, revision, class, dtype and digest of the imported model."""
        report = read_json(self.import_report)
        return {key: report[key] for key in ("repo", "revision", "class", "dtype", "weights_sha256")}

    def identity(self) -> dict[str, Any]:
        """Digests of all that decides the weights, besides the settings."""
        report = read_json(self.import_report)
        return {
            "manifest_sha256": sha256_file(self.manifest),
            "weights_sha256": report["weights_sha256"],
            "processor_sha256": report["files"],
            "limits": self.limits,
            "targets": self.targets,
            "target_parameters": self.target_parameters,
        }


@dataclass(frozen=True)
class Feed:
    """The run's loaders."""

    sources: Sources
    processor: Any
    settings: dict[str, Any]

    def _open(self, split: str, rank: int, world_size: int, workers: int, repeat: bool) -> Any:
        from shardwright.vlm.budgets import Limits
        from shardwright.vlm.encoder import VLMTaskEncoder
        from shardwright.vlm.loader import build_loader

        limits = Limits(**self.sources.limits)
        encoder = VLMTaskEncoder(self.processor, limits, pack=self.settings["packing"])
        return build_loader(
            self.sources.dataset,
            split,
            encoder,
            micro_batch_size=self.settings["micro_batch_size"],
            rank=rank,
            world_size=world_size,
            num_workers=workers,
            seed=self.settings["seed"],
            repeat=repeat,
        )

    def train(self, rank: int, world_size: int) -> Any:
        """This rank's endless savable loader over its share of the train split."""
        return self._open("train", rank, world_size, self.settings["loader_workers"], repeat=True)

    def validation(self) -> Iterable[dict[str, Any]]:
        """One pass over the val split, the same on every rank."""
        return self._open("val", 0, 1, 0, repeat=False)

    def probe(self) -> dict[str, Any]:
        """One batch, the same on every rank and in every run over this dataset."""
        return next(iter(self._open("train", 0, 1, 0, repeat=True)))
