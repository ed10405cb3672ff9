"""The check between dataset and training: batches of both splits, held against the tars (R32, R40, R41)."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest
import yaml

from helpers import snakemake
from shardwright.errors import BuildError
from vlm_helpers import CHECKOUT, MODEL, make_caption, make_sample, write_dataset

SCHEMA = yaml.safe_load((CHECKOUT / "config/schema/data.yaml").read_text())
DEFAULTS = {key: about["default"] for key, about in SCHEMA["properties"].items()}
SMALL = {**DEFAULTS, "seq_length": 256, "min_pixels": 1024, "max_pixels": 4096, "shuffle_buffer_size": 4}


def make_build(root, train, val):
    """A dataset with its manifest and an imported model's folder below `root`."""
    dataset = write_dataset(root / "energon", {"train": [train], "val": [val]})
    tars = [{"name": f"{split}-shard-000000.tar", "split": split} for split in ("train", "val")]
    (dataset / "manifest.json").write_text(json.dumps({"tars": tars}))
    models = root / "models/tiny"
    shutil.copytree(MODEL, models / "import")
    about = {"repo": "a/b", "revision": "0" * 40, "class": "Qwen3VL", "weights_sha256": "1" * 64}
    (models / "import.json").write_text(json.dumps(about))
    return root


def samples(first, count):
    return [make_sample(first + number) for number in range(count)]


def check(root, **changed):
    from check_loader import run

    report = root / "loader_check.json"
    run(root / "energon/manifest.json", root / "models/tiny/import.json", {**SMALL, **changed}, 2, 8, report)
    return json.loads(report.read_text())


def test_the_rule_reports_what_training_will_read(tmp_path):
    """Through Snakemake: counts, shapes, one readable example of each split, and a lost sample by reason."""
    odd = make_sample(90, "a cat <|image_pad|> on a table")
    make_build(tmp_path / "results/example", samples(0, 12), [odd, make_sample(91, " "), *samples(92, 2)])
    snakemake(tmp_path, "results/example/loader_check.json", "--allowed-rules", "check_loader")
    report = json.loads((tmp_path / "results/example/loader_check.json").read_text())
    assert report["num_faults"] == 0
    assert report["splits"].keys() == {"train", "val"}
    train, val = report["splits"]["train"], report["splits"]["val"]
    assert train["num_batches"] == 16
    assert train["supervised_tokens"]["min"] > 1
    assert train["shapes"][0]["pixel_values"][1] == 3 * 2 * 16 * 16
    assert 0 < train["tokens_per_padded_token"]["rows"] < 1
    assert train["tokens_per_padded_token"]["packed"] == 1
    assert val["num_samples"] == 3
    assert val["drops"] == {"empty_answer": 1}
    assert val["adjusted"] == {"neutralised_control_token": 1}
    assert val["example"]["supervised"] == "a cat <|image_pad|> on a table<|im_end|>"
    assert "<|image_pad|> × " in val["example"]["whole"]
    assert report["limits"]["seq_length"] == 512
    assert report["model_limits"]["vocab_size"] == 395
    log = (tmp_path / "results/example/logs/check_loader/check_loader.log").read_text()
    assert f"dropped {91:032x}: empty_answer" in log


def test_another_caption_than_the_stored_one_is_a_fault(tmp_path):
    """An index that points at another sample's text: named with its uid, and the evidence is written."""
    root = make_build(tmp_path, samples(0, 4), samples(90, 4))
    with sqlite3.connect(root / "energon/.nv-meta/index.sqlite") as index:
        first, second = f"{90:032x}", f"{91:032x}"
        for old, new in ((first, "aside"), (second, first), ("aside", second)):
            index.execute("UPDATE samples SET sample_key = ? WHERE sample_key = ?", (new, old))
    with pytest.raises(BuildError, match=r"found 2 faults: val, 0+5.: '.*' supervised, not "):
        check(root)
    report = json.loads((root / "loader_check.failed.json").read_text())
    assert make_caption(91) in report["faults"][0]


def test_packing_that_cannot_isolate_fails_here(tmp_path):
    """R37: Qwen3.6's linear attention is refused on the CPU, not on the GPU node after loading."""
    from check_loader import run

    root = make_build(tmp_path, samples(0, 2), samples(90, 2))
    path = root / "models/tiny/import/config.json"
    about = json.loads(path.read_text())
    about["text_config"]["layer_types"] = ["linear_attention", "full_attention"]
    path.write_text(json.dumps(about))
    files = (root / "energon/manifest.json", root / "models/tiny/import.json")
    with pytest.raises(BuildError, match=r"train.packing: found true with layers of kind linear_attention"):
        run(*files, SMALL, 2, 8, root / "loader_check.json", packing=True)


def test_a_split_without_a_usable_sample_is_a_fault(tmp_path):
    """R41: nothing but blank captions in val."""
    root = make_build(tmp_path, samples(0, 4), [make_sample(90, " "), make_sample(91, "")])
    with pytest.raises(BuildError, match=r"val: no sample left, dropped \{'empty_answer': 2\}"):
        check(root)


@pytest.mark.parametrize("name", [".info.json", "split.yaml", "shardwright.yaml", "index.sqlite"])
def test_missing_metadata_is_named(tmp_path, name):
    """R32: each file of .nv-meta deleted in turn."""
    root = make_build(tmp_path, samples(0, 2), samples(90, 2))
    (root / "energon/.nv-meta" / name).unlink()
    with pytest.raises(BuildError, match=rf"\.nv-meta/{name}: found no such file; expected the metadata"):
        check(root)


def test_another_energon_version_and_too_long_samples_are_refused(tmp_path):
    """R32: metadata of another major version; a sequence longer than the model's positions."""
    root = make_build(tmp_path, samples(0, 2), samples(90, 2))
    with pytest.raises(BuildError, match=r"data.seq_length: found 8192; expected at most 4096"):
        check(root, seq_length=8192)
    info = root / "energon/.nv-meta/.info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "energon_version": "6.0.1"}))
    with pytest.raises(BuildError, match=r"found metadata of Energon 6.0.1; expected Energon 7"):
        check(root)
