"""What a run was asked for: its settings, the digest that names its state, what it was resolved to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shardwright.errors import BuildError
from shardwright.files import read_json, replacing, write_json
from shardwright.training.batching import deciding


@dataclass(frozen=True)
class Request:
    """One run as its caller wants it.

    Args:
        settings: The config's `train` section, whole.
        inputs: Facts about what is read: digests of dataset, model and limits. JSON values.
    """

    settings: dict[str, Any]
    inputs: dict[str, Any]

    @property
    def essence(self) -> dict[str, Any]:
        """What decides the weights."""
        return {"settings": deciding(self.settings), "inputs": self.inputs}

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of the essence; the name of the run's state folder."""
        text = json.dumps(self.essence, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    merged: dict[str, Any] = {}
    for key, inner in value.items():
        merged.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
    return merged


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines `key: old → new` for every key of two nested mappings that differ."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: {before.get(key)} → {after.get(key)}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def open_state(state: Path, request: Request, code: str) -> Path:
    """Return the folder for this run's state, made if need be; tell what else is there.

    A state belongs to what decided its weights. A changed setting or input never resumes another
    run's state and never deletes it. A finished state is kept for the code that made it: when the
    program has changed since, the rebuild starts afresh and the old state is set aside.

    Args:
        state: `train/<run>/state`.
        request: What is asked now.
        code: Digest of the training program.
    """
    folder = state / request.fingerprint
    finished = folder / "finished.json"
    if finished.exists():
        made_by = read_json(finished)["code"]
        if made_by != code:
            aside = state / f"{request.fingerprint}-code-{made_by[:8]}"
            number = 2
            while aside.exists():
                aside, number = (
                    aside.with_name(f"{request.fingerprint}-code-{made_by[:8]}-{number}"),
                    number + 1,
                )
            folder.rename(aside)
            print(
                f"a finished state by an older program is set aside at {aside}; remove it at will", flush=True
            )
    for about in sorted(state.glob("*/about.json")):
        if about.parent != folder and "-code-" not in about.parent.name:
            changed = differences(read_json(about), request.essence)
            print(
                f"another configuration's state is kept at {about.parent} ({'; '.join(changed)})", flush=True
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "about.json", request.essence)
    return folder


def write_resolved(path: Path, resolved: dict[str, Any]) -> None:
    """Write what the run was resolved to as YAML, by rename."""
    with replacing(path) as scratch:
        scratch.write_text(yaml.safe_dump(resolved, sort_keys=True, allow_unicode=True, width=100))


def check_observed(asked: dict[str, Any], observed: dict[str, Any]) -> None:
    """Compare what ran with what was asked.

    Raises:
        BuildError: Any value differs; all differences are told.
    """
    changed = differences(asked, observed)
    if changed:
        raise BuildError(
            "the finished run",
            found="something else than what was asked: " + "; ".join(changed),
            expected="what resolved_config.yaml says",
            next_step="report this with the run's log: the program did not do what its config says",
        )
