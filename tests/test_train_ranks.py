"""Two gloo ranks on the CPU: DDP and FSDP2 agree with one rank, nothing hangs."""

from __future__ import annotations

import json
import signal
import time

import pytest
import yaml

from train_helpers import CHECKOUT, make_batch, tiny_model
from train_ranks import RankGroup, run_ranks
from train_synthetic import train_scenarios

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(600)  # a busy machine
MOE_FILE = yaml.safe_load((CHECKOUT / "config/models/qwen3.6-35b-a3b.yaml").read_text())
SCENARIOS = {
    "lora": {"validation_every": 3, "steps": 4},
    "sft": {
        "mode": "sft",
        "freeze_vision_tower": False,
        "freeze_projector": False,
        "learning_rate": 1e-3,
        "steps": 4,
    },
    "checkpointed": {"activation_checkpointing": True, "mode": "dora", "steps": 4},
    "experts": {
        "adapter_targets": MOE_FILE["adapter_targets"],
        "parameters": MOE_FILE["adapter_parameters"],
        "activation_checkpointing": True,
        "steps": 4,
    },
}


def result(folder, name):
    trained = torch.load(folder / name / "trained.pt")
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
    return trained, records


def write_import(model, folder):
    """An import folder of a model, as import_model writes it."""
    from shardwright.vlm.models import WEIGHTS, save_weights

    save_weights(model, folder / WEIGHTS)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return folder


def test_two_ranks_agree_with_one(tmp_path):
    """R44: the loss is a mean over all ranks' supervised tokens: DDP and FSDP2 train as one rank does.

    Each rank has a different number of supervised tokens, and clipping is active. `experts` is the DataComp
    build in small: linear attention, fused experts, the model file's own targets; under FSDP2 each
    rank opens the import empty and reads its share.
    """
    experts = write_import(tiny_model("Qwen3_5Moe"), tmp_path / "import")
    asked = {**SCENARIOS, "experts": SCENARIOS["experts"] | {"import_dir": experts}}
    groups = {"one": RankGroup(1, tmp_path / "one.log", train_scenarios, asked, tmp_path / "one")}
    for kind in ("ddp", "fsdp2"):
        spread = {name: about | {"parallel": kind, "ranks_per_node": 2} for name, about in asked.items()}
        groups[kind] = RankGroup(2, tmp_path / f"{kind}.log", train_scenarios, spread, tmp_path / kind)
    for group in groups.values():
        assert set(group.wait()) == {0}, group.log.read_text()[-4000:]
    for name in SCENARIOS:
        alone, records = result(tmp_path / "one", name)
        for kind in ("ddp", "fsdp2"):
            trained, others = result(tmp_path / kind, name)
            assert trained.keys() == alone.keys()
            for key, tensor in trained.items():
                torch.testing.assert_close(tensor, alone[key], rtol=0, atol=1e-5, msg=f"{kind} {name} {key}")
            assert [r["uids_sha256"] for r in others if r["kind"] == "train"] == [
                r["uids_sha256"] for r in records if r["kind"] == "train"
            ]
            for one, other in zip(records, others, strict=True):
                assert other["loss"] == pytest.approx(one["loss"], abs=1e-5)
                assert other["num_tokens"] == one["num_tokens"]
    trained, _ = result(tmp_path / "fsdp2", "experts")
    updates = [tensor for name, tensor in trained.items() if "experts" in name and ".lora_B." in name]
    assert len(updates) == 4 and all(tensor.abs().max() > 0 for tensor in updates)


def test_one_bad_rank_stops_all_of_them_by_name(tmp_path):
    """R42: a loss that is not finite on one rank stops both, names its samples, and nothing hangs."""
    scenario = {"bad": {"ranks_per_node": 2, "nan_at": 5, "parallel": "fsdp2"}}
    group = RankGroup(2, tmp_path / "log", train_scenarios, scenario, tmp_path)
    assert group.wait() == [1, 1]
    text = group.log.read_text()
    assert text.count("step 3: found a loss that is not finite") == 2
    assert all(uid in text for uid in make_batch(5, 2)["uids"])
    assert make_batch(4, 2)["uids"][0] not in text
    assert (tmp_path / "bad/step-00000002/checkpoint.json").exists()


def test_validation_of_fewer_batches_than_ranks_is_right(tmp_path):
    """A val split of one batch on two ranks neither hangs nor changes the loss; an empty one is told."""
    short = {"ranks_per_node": 2, "parallel": "fsdp2", "validation_every": 3, "num_val": 1, "steps": 3}
    run_ranks(2, tmp_path / "log", train_scenarios, {"short": short}, tmp_path)
    run_ranks(1, tmp_path / "log1", train_scenarios, {"alone": short | {"ranks_per_node": 1}}, tmp_path)
    losses = [
        [r["loss"] for r in result(tmp_path, name)[1] if r["kind"] == "validation"]
        for name in ("short", "alone")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and len(losses[0]) == 2
    empty = {"none": short | {"num_val": 0}}
    group = RankGroup(2, tmp_path / "log2", train_scenarios, empty, tmp_path)
    assert group.wait() == [1, 1]
    assert "the val split: found no sample with a supervised token" in group.log.read_text()


def test_sigterm_on_two_ranks_saves_and_resumes_to_the_same_bits(tmp_path):
    """R46: SIGTERM to both ranks, then SIGKILL, then resumed: weights and losses of a whole run."""
    scenario = {"ranks_per_node": 2, "parallel": "fsdp2", "steps": 12, "adapter_dropout": 0.2, "slow_s": 0.1}
    run_ranks(2, tmp_path / "whole.log", train_scenarios, {"whole": scenario | {"slow_s": 0}}, tmp_path)
    for number, expected in ((signal.SIGTERM, [75, 75]), (signal.SIGKILL, [-9, -9])):
        group = RankGroup(2, tmp_path / "part.log", train_scenarios, {"part": scenario}, tmp_path)
        metrics = tmp_path / "part/metrics.jsonl"
        seen = len(metrics.read_text()) if metrics.exists() else 0
        deadline = time.monotonic() + 200
        while not metrics.exists() or len(metrics.read_text()) < seen + 300:
            assert time.monotonic() < deadline, group.log.read_text()[-3000:]
            time.sleep(0.05)
        group.signal(number)
        assert group.wait() == expected, group.log.read_text()[-3000:]
    run_ranks(2, tmp_path / "part.log", train_scenarios, {"part": scenario}, tmp_path)
    whole, part = (result(tmp_path, name) for name in ("whole", "part"))
    assert all(torch.equal(whole[0][key], part[0][key]) for key in whole[0])
    keys = ("step", "loss", "grad_norm", "uids_sha256")
    assert [[r[k] for k in keys] for r in whole[1]] == [[r[k] for k in keys] for r in part[1]]
