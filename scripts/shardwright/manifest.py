"""The manifest: what the dataset was made from, how, what was left out, and every tar's digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwright.errors import BuildError
from shardwright.files import sha256_file

SPLIT_RULE = (
    "val if the first 8 bytes of SHA-256(uid), read big-endian and divided by 2^64, are below "
    "validation_fraction; train otherwise"
)
ORDER = "by shard, then by key of the raw sample"


def check_meta_files(meta: Path, files: dict[str, str]) -> None:
    """Compare Energon's metadata files with the digests recorded when they were written.

    Raises:
        BuildError: A file is missing or altered.
    """
    for name, sha256 in files.items():
        path = meta / name
        found = f"SHA-256 {sha256_file(path)}" if path.is_file() else "no such file"
        if found != f"SHA-256 {sha256}":
            raise BuildError(
                str(path),
                found=found,
                expected=f"SHA-256 {sha256}, as index_dataset wrote it",
                next_step="delete it and run the same command again: it is written anew",
            )


def make_manifest(
    source: dict[str, Any],
    samples: dict[str, Any],
    audit: dict[str, Any],
    plan: dict[str, Any],
    index: dict[str, Any],
) -> dict[str, Any]:
    """Put together the manifest; equal builds give equal manifests.

    Args:
        source: Repository, revision and parquet files of the metadata.
        samples: The config values that shaped the set.
        audit: The audit's summary.
        plan: The plan's summary.
        index: The index's receipt.

    Raises:
        BuildError: The stages do not account for the same samples.
    """
    num_dropped = sum(plan["dropped"].values())
    if plan["num_kept"] + num_dropped != plan["num_read"] or plan["num_kept"] != index["samples"]:
        raise BuildError(
            "the counts of plan and index",
            found=f"read {plan['num_read']}, kept {plan['num_kept']}, dropped {num_dropped}, "
            f"indexed {index['samples']}",
            expected="kept + dropped = read, and every kept sample indexed",
            next_step="run `snakemake -R select_samples`, which selects and writes the set anew",
        )
    splits = {stem: stem.partition("-")[0] for stem in plan["parts"]}
    return {
        "source": source,
        "adaptation": {
            "objective": "supervised fine-tuning: say the caption of a picture",
            "prompt": samples["prompt"],
            "target": "the caption, as the audit read it",
            "loss_mask": "the assistant's turn alone",
            "split_rule": SPLIT_RULE,
            "validation_fraction": samples["validation_fraction"],
            "order": ORDER,
        },
        "counts": {
            "read": plan["num_read"],
            "kept": plan["num_kept"],
            "dropped": plan["dropped"],
            "splits": plan["splits"],
        },
        "gates": audit["gates"],
        "energon_version": index["energon_version"],
        "tars": [
            {
                "name": tar["tar"],
                "split": split,
                "samples": tar["samples"],
                "bytes": tar["bytes"],
                "sha256": tar["sha256"],
            }
            for split, tar in zip(splits.values(), index["tars"], strict=True)
        ],
    }
