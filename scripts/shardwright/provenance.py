"""The record of what went into a checkpoint: one chain of digests from the pins to the weights."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from shardwright.code_digest import code_digest
from shardwright.files import CHECKOUT, read_json, sha256_file

PACKAGES = (
    *("snakemake", "img2dataset", "pillow", "opencv-python-headless", "pyarrow", "webdataset"),
    *("megatron-energon", "torch", "torchvision", "transformers", "tokenizers", "peft", "huggingface_hub"),
)


def packages() -> dict[str, str]:
    """Versions of the packages that shape the outputs, and of Python."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


def git_commit() -> dict[str, Any]:
    """The checkout's commit and whether its files differ from it; empty outside a git checkout."""
    git = ["git", "-C", str(CHECKOUT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode != 0:
        return {}
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return {"commit": commit.stdout.strip(), "modified": bool(status.stdout.strip())}


def programs() -> dict[str, str]:
    """Code digest of every program."""
    scripts = CHECKOUT / "scripts"
    return {path.stem: code_digest(scripts, path.stem) for path in sorted(scripts.glob("*.py"))}


def chain_digest(links: dict[str, str]) -> str:
    """One SHA-256 for the whole build: over the digest of each link, in order of name."""
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(links.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def make_provenance(root: Path, config: dict[str, Any], model: str, run: str) -> dict[str, Any]:
    """Gather the record of one build.

    Args:
        root: The build's root folder, complete up to the exported checkpoint.
        config: The checked config.
        model: Name of the model.
        run: Name of the training run.

    Returns:
        A mapping without clock, host or path; two builds that agree in their parts agree in it,
        `programs`, `packages` and `git` apart.
    """
    manifest = read_json(root / "energon/manifest.json")
    imported = read_json(root / f"models/{model}/import.json")
    export = read_json(root / f"train/{run}/export.json")
    tars = {tar["name"]: tar["sha256"] for tar in manifest["tars"]}
    files = {name: entry["sha256"] for name, entry in imported["hub_files"].items()}
    links = {
        "metadata": chain_digest({entry["file"]: entry["sha256"] for entry in manifest["source"]["files"]}),
        "dataset": chain_digest(tars),
        "manifest": sha256_file(root / "energon/manifest.json"),
        "model": chain_digest(files),
        "imported_weights": imported["weights_sha256"],
        "checkpoint": chain_digest(export["sha256"]),
    }
    return {
        "build": config["build"],
        "config": {key: value for key, value in config.items() if key != "root"},
        "metadata": manifest["source"],
        "counts": manifest["counts"],
        "tars": tars,
        "model": {key: imported[key] for key in ("repo", "revision", "class", "dtype", "num_parameters")}
        | {"files": files},
        "checkpoint": export["sha256"],
        "links": links,
        "sha256": chain_digest(links),
        "programs": programs(),
        "packages": packages(),
        "git": git_commit(),
    }
