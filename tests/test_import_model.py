"""The import takes a model whole or not at all (R42, R44), and training reads back what was imported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers import CHECKOUT, run_program, snakemake
from shardwright.config_check import read_model_file
from shardwright.errors import BuildError

HUB = CHECKOUT / "config/example/model"
SCHEMA = CHECKOUT / "config/schema"


@pytest.fixture
def hub(tmp_path) -> Path:
    folder = tmp_path / "hub"
    shutil.copytree(HUB, folder)
    return folder


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_tensors(hub: Path, change) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(hub / "model.safetensors")
    change(tensors)
    save_file(tensors, hub / "model.safetensors", metadata={"format": "pt"})


def import_it(hub: Path, kind: str = "Qwen3VLForConditionalGeneration") -> dict:
    from shardwright.vlm.importing import import_model

    target = hub.parent / "import"
    target.mkdir()
    return import_model(hub, target, {"class": kind, "dtype": "fp32"}, 0)


def test_the_training_form_is_the_model(hub):
    """What load_imported gives answers and weighs like transformers' own loading of the repository."""
    import torch
    from transformers import AutoModelForImageTextToText

    from shardwright.vlm.importing import fingerprint
    from shardwright.vlm.models import load_imported, stored_weights, weights_digest

    report = import_it(hub)
    model, processor = load_imported(hub.parent / "import", torch.float32, torch.device("cpu"))
    own = AutoModelForImageTextToText.from_pretrained(hub)
    assert weights_digest(stored_weights(model)) == report["weights_sha256"]
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), own.state_dict().values(), strict=True)
    )
    assert fingerprint(model, processor) == report["fingerprint"] == fingerprint(own.eval(), processor)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.visual.merger.norm.weight"), "1 missing .*merger.norm.weight"),
        (lambda t: t.update(stray=t["model.visual.merger.norm.weight"].clone()), r"1 unexpected \(stray\)"),
        (
            lambda t: t.update(
                {"model.visual.merger.norm.weight": t["model.visual.merger.norm.weight"][:5].clone()}
            ),
            "1 misshapen",
        ),
        (
            lambda t: t["model.language_model.embed_tokens.weight"].fill_(float("nan")),
            "logits that are not finite",
        ),
    ],
    ids=["dropped", "stray", "misshapen", "nan"],
)
def test_a_damaged_checkpoint_is_refused(hub, change, message):
    edit_tensors(hub, change)
    with pytest.raises(BuildError, match=message):
        import_it(hub)


def test_a_truncated_weights_file_is_refused(hub):
    path = hub / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(BuildError, match="expected the whole checkpoint of a Qwen3VL"):
        import_it(hub)


def test_another_class_is_refused(hub):
    with pytest.raises(BuildError, match=r"architecture Qwen3VLForCond.*expected Qwen3VLMoeForCond"):
        import_it(hub, "Qwen3VLMoeForConditionalGeneration")


def test_a_processor_of_another_model_is_refused(hub):
    settings = json.loads((hub / "processor_config.json").read_text())
    settings["image_processor"]["patch_size"] = 14
    edit_json(hub / "processor_config.json", **settings)
    with pytest.raises(BuildError, match="patch size 14; expected patch size 16"):
        import_it(hub)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(hub):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(hub)
    tokenizer.add_tokens([f"<new-{number}>" for number in range(9)])
    tokenizer.save_pretrained(hub)
    with pytest.raises(BuildError, match="tokenizer size 404 tokens; expected tokenizer size at most 395"):
        import_it(hub)


def test_a_missing_processor_is_refused(hub):
    (hub / "processor_config.json").unlink()
    with pytest.raises(BuildError, match="processor"):
        import_it(hub)


@pytest.mark.parametrize("kind", ["Qwen3VLMoe", "Qwen3_5Moe"])
def test_mixtures_of_experts_are_imported_whole(hub, kind):
    """Experts stored one by one or fused: both end with every tensor placed."""
    import torch
    import transformers

    from shardwright.vlm.models import load_imported, stored_weights, weights_digest

    base = json.loads((HUB / "config.json").read_text())
    text = base["text_config"] | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
    }
    text.pop("model_type")
    if kind == "Qwen3_5Moe":
        text |= {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        }
    vision = {key: value for key, value in base["vision_config"].items() if key != "model_type"}
    ids = {key: value for key, value in base.items() if key.endswith("_token_id")}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **ids)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    model.save_pretrained(hub)
    report = import_it(hub, f"{kind}ForConditionalGeneration")
    again, _ = load_imported(hub.parent / "import", torch.float32, torch.device("cpu"))
    assert (
        weights_digest(stored_weights(again))
        == report["weights_sha256"]
        == weights_digest(stored_weights(model))
    )


def test_model_files_are_checked_like_the_config(tmp_path):
    for path in sorted((CHECKOUT / "config/models").glob("*.yaml")):
        assert read_model_file(str(path), SCHEMA)["name"] == path.stem
    text = (CHECKOUT / "config/models/tiny.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("dtype:", "dtypes:"))
    with pytest.raises(
        BuildError, match=r"wrong\.yaml, key dtypes: found an unknown key.*did you mean dtype"
    ):
        read_model_file(str(wrong), SCHEMA)
    with pytest.raises(BuildError, match="no such file"):
        read_model_file(str(tmp_path / "absent.yaml"), SCHEMA)
    with pytest.raises(BuildError, match="found a folder; expected a model file"):
        read_model_file(str(tmp_path), SCHEMA)
    wrong.write_text("name: tiny\nrepo: [a, b\ndtype: fp32\n")
    with pytest.raises(BuildError, match=r"wrong\.yaml, line 3: found .*; expected YAML"):
        read_model_file(str(wrong), SCHEMA)


def test_the_pin_command_in_a_model_file_is_the_one_that_fetch_model_tells():
    """A newcomer gets one name for the table, wherever it is read."""
    from fetch_model import read_table

    for path in sorted((CHECKOUT / "config/models").glob("q*.yaml")):
        about = read_model_file(str(path), SCHEMA)
        with pytest.raises(BuildError) as caught:
            read_table("", about["name"], about["repo"], about["revision"])
        table = caught.value.next_step.split("`files: ")[1].split("`")[0]
        assert f"--table {table}" in path.read_text()


def test_the_rule_fetches_imports_and_refuses_missing_gpus(tmp_path):
    snakemake(tmp_path, "model", "--allowed-rules", "model", "fetch_model", "import_model")
    root = tmp_path / "results/example/models/tiny"
    report = json.loads((root / "import.json").read_text())
    assert report["num_parameters"] == 430_800
    assert set(report["hub_files"]) == {path.name for path in HUB.iterdir()}
    done = run_program(
        "import_model",
        *("--hub", root / "hub.json", "--class", report["class"], "--dtype", "fp32", "--gpus", 64),
        *("--target", tmp_path / "x/import", "--report", tmp_path / "x/import.json"),
        check=False,
    )
    assert done.returncode == 1
    assert "visible GPUs; expected 64" in done.stdout
    assert not (tmp_path / "x").exists()
