"""The config, checked and filled with defaults, before any job is planned.

Each section of the config has a JSON Schema in `config/schema/<section>.yaml`; `build.yaml` holds
the top-level scalars. Defaults live in the schema alone. Standard library, PyYAML and jsonschema
only: the Snakefile imports this module.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from shardwright.errors import BuildError
from shardwright.files import find_path

TOP_LEVEL = "build"
TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "keys and values",
    "null": "null",
}
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "{} or more characters long",
    "pattern": "of the form {}",
}


def load_schema(folder: Path) -> dict[str, Any]:
    """Assemble the whole schema from the section files of `folder` (config/schema)."""
    schema = yaml.safe_load((folder / f"{TOP_LEVEL}.yaml").read_text())
    for path in sorted(folder.glob("*.yaml")):
        if path.stem not in (TOP_LEVEL, "model_file"):
            schema["properties"][path.stem] = yaml.safe_load(path.read_text())
    return schema


def _types(schema: dict[str, Any]) -> list[str]:
    named = schema.get("type", [])
    return [named] if isinstance(named, str) else named


def _from_text(value: Any, schema: dict[str, Any]) -> Any:
    """Read a value that `--config section='{key: 5}'` gave: Snakemake makes text of what is in braces."""
    if not isinstance(value, str) or "string" in _types(schema) or "enum" in schema:
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return read if jsonschema.Draft202012Validator({"type": _types(schema)}).is_valid(read) else value


def _with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    value = _from_text(value, schema)
    if "object" not in _types(schema) or not isinstance(value, dict):
        return value
    filled = dict(value)
    for key, sub in schema.get("properties", {}).items():
        if key not in filled:
            if "default" in sub:
                filled[key] = copy.deepcopy(sub["default"])
            elif sub.get("type") == "object":
                filled[key] = {}
        if key in filled:
            filled[key] = _with_defaults(filled[key], sub)
    return filled


def _paths(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, sub in schema.get("properties", {}).items():
        yield prefix + key
        yield from _paths(sub, f"{prefix}{key}.")


def _unknown_key(error: jsonschema.ValidationError, schema: dict[str, Any], prefix: str) -> BuildError:
    known = error.schema["properties"]
    key = next(name for name in error.instance if name not in known)
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
    elsewhere = [path for path in _paths(schema) if path.rpartition(".")[2] == key]
    if near:
        hint, next_step = f" (did you mean {prefix}{near[0]}?)", "correct its name"
    elif elsewhere:
        hint, next_step = f" (that key belongs at {elsewhere[0]})", "move it there"
    else:
        hint, next_step = "", "remove it, or pick a key from config/schema/"
    return BuildError(
        f"config key {prefix}{key}",
        found="an unknown key" + hint,
        expected="one of " + ", ".join(sorted(known)),
        next_step=next_step,
    )


def _missing_key(error: jsonschema.ValidationError, prefix: str) -> BuildError:
    key = next(name for name in error.validator_value if name not in error.instance)
    about = error.schema["properties"].get(key, {}).get("description", "")
    return BuildError(
        f"config key {prefix}{key}",
        found="nothing",
        expected=about.rstrip(".") or "a value",
        next_step="set it in your config file; config/config.yaml is a complete example "
        "(a config that names its own `build` starts from the defaults alone)",
    )


def _wanted(schema: dict[str, Any]) -> str:
    """Say in words what a schema accepts, then what it is for."""
    if "enum" in schema:
        wanted = "one of " + ", ".join(map(str, schema["enum"]))
    else:
        kinds = " or ".join(TYPE_NAMES[name] for name in _types(schema))
        bounds = [words.format(schema[name]) for name, words in BOUNDS.items() if name in schema]
        wanted = ", ".join([kinds, *bounds])
    about = schema.get("description", "").rstrip(".")
    return f"{wanted} ({about})" if about else wanted


def _bad_value(error: jsonschema.ValidationError, path: str) -> BuildError:
    return BuildError(
        f"config key {path}",
        found=repr(error.instance),
        expected=error.schema.get("expected") or _wanted(error.schema),
        next_step=f"correct {path}",
    )


def _explain(error: jsonschema.ValidationError, schema: dict[str, Any]) -> BuildError:
    path = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{path}." if path else ""
    if error.validator == "additionalProperties":
        return _unknown_key(error, schema, prefix)
    if error.validator == "required":
        return _missing_key(error, prefix)
    return _bad_value(error, path)


def check_against(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return `value` with defaults filled in, or refuse it.

    Raises:
        BuildError: An unknown key (with the nearest known one), a missing or a bad value.
    """
    filled = _with_defaults(value, schema)
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(filled),
        key=lambda error: (error.validator != "additionalProperties", list(map(str, error.absolute_path))),
    )
    if errors:
        raise _explain(errors[0], schema)
    return filled


def check_config(config: dict[str, Any], schema_folder: Path) -> dict[str, Any]:
    """Return the whole config, checked and with defaults.

    Args:
        config: What the user wrote (config file plus `--config`).
        schema_folder: `config/schema`.

    Raises:
        BuildError: As `check_against`; also for values that contradict each other.
    """
    filled = check_against(config, load_schema(schema_folder))
    if not filled["root"]:
        filled["root"] = f"results/{filled['build']}"
    return filled


def read_model_file(text: str, schema_folder: Path) -> dict[str, Any]:
    """Return the checked model file that the config key `model` names, with defaults.

    Raises:
        BuildError: The file is missing, is not a mapping, or breaks `config/schema/model_file.yaml`.
    """
    path = find_path(text)
    next_step = (
        "correct the config key model, or write the file; config/models/tiny.yaml is a complete example"
    )
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise BuildError(str(path), found=found, expected="a model file", next_step=next_step)
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise BuildError(
            f"{path}, line {mark.line + 1}" if mark else str(path),
            found=getattr(error, "problem", None) or str(error),
            expected="YAML: keys and values",
            next_step="correct this line or the one before it",
        ) from None
    if not isinstance(value, dict):
        raise BuildError(str(path), found=repr(value)[:80], expected="keys and values", next_step=next_step)
    try:
        return check_against(value, yaml.safe_load((schema_folder / "model_file.yaml").read_text()))
    except BuildError as error:
        subject = error.subject.replace("config key", f"{text}, key")
        raise BuildError(
            subject, found=error.found, expected=error.expected, next_step=error.next_step
        ) from None
