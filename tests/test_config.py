"""The config refuses what it does not know or cannot mean, and says what would be right."""

from __future__ import annotations

import copy

import jsonschema
import pytest
import yaml

from helpers import CHECKOUT, snakemake
from shardwright.config_check import check_config, load_schema
from shardwright.errors import BuildError

SCHEMA = CHECKOUT / "config/schema"
EXAMPLE = yaml.safe_load((CHECKOUT / "config/config.yaml").read_text())


def changed(path: str, value: object) -> dict:
    """The example's config with one dotted key set to `value`."""
    config = copy.deepcopy(EXAMPLE)
    *parents, last = path.split(".")
    section = config
    for name in parents:
        section = section.setdefault(name, {})
    section[last] = value
    return config


def walk(schema: dict, prefix: str = ""):
    for key, sub in schema.get("properties", {}).items():
        yield f"{prefix}{key}", sub
        yield from walk(sub, f"{prefix}{key}.")


@pytest.mark.parametrize("path", sorted(p.name for p in (CHECKOUT / "config").glob("*.yaml")))
def test_committed_configs_are_valid(path):
    checked = check_config(yaml.safe_load((CHECKOUT / "config" / path).read_text()), SCHEMA)
    assert checked["root"] == f"results/{checked['build']}"


def test_schema_describes_every_key_and_its_defaults_are_valid():
    schema = load_schema(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    for path, sub in walk(schema):
        assert sub.get("description") or sub.get("type") == "object", f"{path} has no description"
        if "default" in sub:
            jsonschema.validate(sub["default"], sub)
        if sub.get("type") == "object":
            assert sub.get("additionalProperties") is False, f"{path} accepts unknown keys"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("samples.per_tarr", 5, r"samples\.per_tarr: found an unknown key.*did you mean samples\.per_tar\?"),
        ("per_tar", 5, r"per_tar: found an unknown key.*belongs at samples\.per_tar"),
        ("metadata.revision", "main", r"metadata\.revision: found 'main'; expected 40 lowercase hex digits"),
        ("samples.validation_fraction", 1.0, r"samples\.validation_fraction: found 1\.0"),
        ("samples.total", 0, r"samples\.total: found 0"),
        ("samples.total", "many", r"samples\.total: found 'many'"),
        ("build", "A b", r"build: found 'A b'"),
    ],
)
def test_bad_values_are_refused_with_the_reason(path, value, message):
    with pytest.raises(BuildError, match=message):
        check_config(changed(path, value), SCHEMA)


def test_missing_key_is_named_with_its_meaning():
    config = copy.deepcopy(EXAMPLE)
    del config["metadata"]["pins"]
    with pytest.raises(BuildError, match=r"metadata\.pins: found nothing; expected Path of the pin table"):
        check_config(config, SCHEMA)


def test_a_build_of_its_own_does_not_inherit_the_examples_settings():
    """A real build must not get the example's loopback server because it forgot to say no."""
    own = {key: EXAMPLE[key] for key in ("metadata", "samples", "model", "train") if key in EXAMPLE}
    checked = check_config({"build": "own", **own}, SCHEMA)
    assert checked["example_server"] is False
    assert checked["download"]["allow_private_addresses"] is False


def test_snakemake_shows_a_config_error_as_one_sentence(tmp_path):
    done = snakemake(tmp_path, "-n", "--config", "sampels=3", check=False)
    assert done.returncode != 0
    assert "config key sampels: found an unknown key" in done.stdout
    assert "did you mean samples?" in done.stdout
    assert "Traceback" not in done.stdout
