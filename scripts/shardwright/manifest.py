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
META_FILES = (".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "shardwright.yaml", "split.yaml")
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


def _check_accounts(
    source: dict[str, Any],
    samples: dict[str, Any],
    audit: dict[str, Any],
    plan: dict[str, Any],
    index: dict[str, Any],
) -> None:
    num_dropped = sum(plan["dropped"].values())
    found = (audit["downloaded"], plan["num_kept"] + num_dropped, index["samples"])
    if found != (plan["num_read"], plan["num_read"], plan["num_kept"]):
        raise BuildError(
            "the counts of audit, plan and index",
            found=f"downloaded {audit['downloaded']}, read {plan['num_read']}, kept {plan['num_kept']}, "
            f"dropped {num_dropped}, indexed {index['samples']}",
            expected="downloaded = read = kept + dropped, and every kept sample indexed",
            next_step="run `snakemake -R select_samples`, which selects and writes the set anew",
        )
    expected = {"repo": source["repo"], "revision": source["revision"], "prompt": samples["prompt"]}
    for tar in index["tars"]:
        if {name: tar[name] for name in expected} != expected:
            raise BuildError(
                tar["tar"],
                found=str({name: tar[name] for name in expected}),
                expected=str(expected),
                next_step=f"delete {tar['tar']} and run the same command again: it is written anew",
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
        BuildError: The stages do not account for the same samples, or a tar is of another config.
    """
    _check_accounts(source, samples, audit, plan, index)
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
            "urls": audit["urls"],
            "downloaded": audit["downloaded"],
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
