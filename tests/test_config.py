"""The config refuses what it does not know or cannot mean, and says what would be right."""

from __future__ import annotations

import contextlib
import copy
import os

import jsonschema
import pytest
import yaml

from helpers import CHECKOUT, snakemake
from shardwright.config_check import check_config, load_schema
from shardwright.errors import BuildError
from shardwright.layout import check_root, read_pins

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
        (
            "samples.validation_fraction",
            1.0,
            r"samples\.validation_fraction: found 1\.0; expected a number, at least 0, below 1 \(Share of",
        ),
        ("samples.total", 0, r"samples\.total: found 0; expected a whole number, at least 1 \(Samples to"),
        ("samples.total", "many", r"samples\.total: found 'many'; expected a whole number"),
        ("samples.tars", 3, r"samples\.tars: found 3; expected keys and values or null \("),
        ("samples.prompt", "", r"samples\.prompt: found ''; expected text, 1 or more characters long"),
        ("train.parallel", "ddp2", r"train\.parallel: found 'ddp2'; expected one of ddp, fsdp2 \("),
        ("example_server", "often", r"example_server: found 'often'; expected true or false \("),
        ("build", "A b", r"build: found 'A b'"),
    ],
)
def test_bad_values_are_refused_with_the_reason(path, value, message):
    with pytest.raises(BuildError, match=message) as refused:
        check_config(changed(path, value), SCHEMA)
    text = str(refused.value)
    assert ".." not in text and " is not " not in text and text.index("; expected") < text.index(" Next: ")


def test_a_hint_comes_before_the_list_of_known_keys():
    with pytest.raises(BuildError) as refused:
        check_config(changed("train.step", 5), SCHEMA)
    text = str(refused.value)
    assert text.index("did you mean train.steps?") < text.index("expected one of ")


def test_what_braces_on_the_command_line_turned_into_text_is_read_by_the_schema(tmp_path):
    """Snakemake makes strings of all that stands in braces: numbers, switches and null are read again."""
    given = {"total": "5", "validation_fraction": "0.5", "per_tar": "7", "tars": "{train: 1}", "prompt": "9"}
    config = changed("samples", given)
    config["train"] = {"packing": "true", "data_micro_batch_size": "null", "mode": "sft"}
    checked = check_config(config, SCHEMA)
    expected = {"total": 5, "validation_fraction": 0.5, "per_tar": 7, "tars": {"train": 1}, "prompt": "9"}
    assert {key: checked["samples"][key] for key in expected} == expected
    assert checked["train"]["packing"] is True and checked["train"]["data_micro_batch_size"] is None
    done = snakemake(tmp_path, "-n", "--quiet", "all", "--config", "samples={total: 190, per_tar: 200.5}",
                     check=False)  # fmt: skip
    assert "samples.per_tar: found '200.5'; expected a whole number" in done.stdout


def test_a_root_that_cannot_be_written_is_refused_before_any_job(tmp_path):
    """A file in its way, and a folder of somebody else; one that is not there yet is made by the jobs."""
    check_root(tmp_path / "new/folder")
    (tmp_path / "file").write_text("")
    done = snakemake(tmp_path, "-n", "--config", "root=file/build", check=False)
    assert "config key root file/build: found" in done.stdout and "not a folder" in done.stdout
    assert "Traceback" not in done.stdout
    (tmp_path / "closed").mkdir(mode=0o555)
    with (
        nobody(),
        pytest.raises(BuildError, match=r"found no such folder, and in \S+ no right to write"),
    ):
        check_root(tmp_path / "closed/build")


@contextlib.contextmanager
def nobody():
    """Act without root's rights, which know no closed folder."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_pins_that_name_a_folder(tmp_path):
    with pytest.raises(BuildError, match=r"found a folder; expected a tab-separated pin table"):
        read_pins(tmp_path)


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
