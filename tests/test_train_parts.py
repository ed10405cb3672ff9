"""The parts of training, in this process: batches, adapters, checkpoints, guards, metrics."""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from shardwright.errors import BuildError
from shardwright.training.batching import plan_batches
from train_helpers import CHECKOUT, SyntheticFeed, make_batch, settings, tiny_model

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ranks():
    from shardwright.training.parallel import make_deterministic, start_ranks

    alone = start_ranks("cpu", 1)
    make_deterministic(0, alone.device, True)
    yield alone
    torch.distributed.destroy_process_group()


@pytest.fixture
def build(ranks, tmp_path):
    """Make a run on synthetic batches; keyword arguments are train settings."""
    from shardwright.training.setup import build_run
    from shardwright.training.stop import StopRequest

    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }

    def make(model=None, folder=tmp_path, parameters="", nan_at=-1, empty=(), drops=None, **changed):
        asked = settings(**changed)
        feed = SyntheticFeed(asked, parameters, nan_at=nan_at, empty=empty, drops=drops)
        return build_run(asked, model or tiny_model(), feed, ranks, folder, StopRequest())

    yield make
    for number, handler in handlers.items():
        signal.signal(number, handler)


def trained(run):
    return {name: p.detach().clone() for name, p in run.model.named_parameters() if p.requires_grad}


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(folder: Path):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["loss"], r["uids_sha256"]) for r in records if r["kind"] == "train"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data_micro_batch_size": 3}, "data_micro_batch_size: found 3 beside train.micro_batch_size 2"),
        ({"global_batch_size": 6, "ranks_per_node": 2}, "set it to 4 or 8"),
        ({"global_batch_size": 1}, "a multiple of 2"),
        ({"packing": True, "micro_batch_size": 1}, "at least 2 samples to pack"),
    ],
)
def test_batches_that_do_not_agree_are_refused(changed, message):
    with pytest.raises(BuildError, match=message):
        plan_batches(settings(**changed))


def test_batch_arithmetic_is_told():
    plan = plan_batches(settings(global_batch_size=24, micro_batch_size=2, ranks_per_node=3, nodes=2))
    assert str(plan) == "global batch 24 = micro batch 2 × 6 ranks × 2 accumulation steps"


@pytest.mark.parametrize(("schedule", "last"), [("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)])
def test_learning_rate_warms_up_then_falls(schedule, last):
    from shardwright.training.optim import learning_rate

    asked = settings(schedule=schedule, steps=20, warmup_steps=4, learning_rate=1.0)
    rates = [learning_rate(step, asked) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(last)


def test_table_shows_adapters_and_frozen_parts_get_none(build, capsys):
    """R44: what is trained is printed by name, part and size."""
    run = build(adapter_targets="q_proj qkv", freeze_vision_tower=False)
    table = capsys.readouterr().out
    assert "model.visual.blocks.*.attn.qkv" in table and "vision_tower" in table
    build(adapter_targets="q_proj linear_fc1", freeze_projector=False)
    table = capsys.readouterr().out
    assert "model.visual.merger.linear_fc1" in table
    assert "blocks" not in table
    assert all(p.dtype == torch.float32 for p in trained(run).values())


def test_target_that_matches_nothing_is_an_error(build):
    """R44: a target that names nothing outside the frozen parts stops the run and shows what there is."""
    with pytest.raises(BuildError, match=r"adapter target 'query': found no linear module.*k_proj"):
        build(adapter_targets="q_proj query")
    with pytest.raises(BuildError, match=r"'qkv': found no linear module .* outside the frozen parts"):
        build(adapter_targets="q_proj qkv")
    with pytest.raises(BuildError, match="all three parts frozen"):
        build(freeze_language_model=True)


def test_fused_experts_are_trained(build, ranks):
    """R44: experts that are one fused tensor, no Linear, get adapters that receive gradients."""
    from shardwright.training.loop import train

    experts = "mlp.experts.gate_up_proj mlp.experts.down_proj"
    run = build(tiny_model("Qwen3VLMoe"), parameters=experts, adapter_targets="q_proj", steps=2)
    before = trained(run)
    assert sum("experts" in name for name in before) == 8
    train(run)
    after = trained(run)
    assert all(not torch.equal(before[name], after[name]) for name in before if "lora_B" in name)
    with pytest.raises(BuildError, match="dora with fused-expert targets"):
        build(tiny_model("Qwen3VLMoe"), parameters=experts, adapter_targets="q_proj", mode="dora")


@pytest.mark.parametrize("mode", ["sft", "pretrain"])
def test_full_modes_train_exactly_the_unfrozen_parts(build, tmp_path, mode):
    from shardwright.training.loop import train

    model = tiny_model()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = build(model, mode=mode, seed=7, steps=2, freeze_projector=False)
    fresh = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    vision = [name for name in start if ".visual.blocks" in name]
    assert vision and all(torch.equal(start[name], fresh[name]) for name in vision)
    assert same_bits(start, fresh) == (mode == "sft")
    train(run)
    for name, parameter in run.model.named_parameters():
        frozen = ".visual." in name and "merger" not in name
        assert torch.equal(parameter, fresh[name]) == frozen, name


@pytest.mark.parametrize("mode", ["lora", "dora"])
def test_bf16_and_activation_checkpointing_give_every_tensor_a_gradient(build, tmp_path, mode):
    """R43, R44: DoRA forward and backward in bf16; checkpointing with a frozen base."""
    from shardwright.training.loop import train

    run = build(
        tiny_model().bfloat16(),
        mode=mode,
        dtype="bf16",
        steps=2,
        activation_checkpointing=True,
        adapter_targets="q_proj gate_proj qkv",
        freeze_vision_tower=False,
    )
    train(run)
    assert all(math.isfinite(loss) for _, loss, _ in losses(tmp_path))
    assert {p.dtype for p in trained(run).values()} == {torch.float32}


def test_activation_checkpointing_changes_no_bit(build, tmp_path):
    from shardwright.training.loop import train

    runs = [build(folder=tmp_path / str(on), activation_checkpointing=on, steps=3) for on in (False, True)]
    for run in runs:
        train(run)
    assert same_bits(trained(runs[0]), trained(runs[1]))


def test_tensor_without_gradient_stops_the_run(build, tmp_path):
    """R44: a trainable tensor that the backward pass does not reach is an error, not a silent no-op."""
    from shardwright.training.loop import train

    run = build()
    run.model.register_parameter("unused", torch.nn.Parameter(torch.zeros(2, 2)))
    with pytest.raises(BuildError, match=r"no gradient for 1 trainable tensors, the first being unused"):
        train(run)


def test_not_finite_stops_before_the_step_and_names_the_samples(build, tmp_path):
    """R42: the bad micro batch's uids, the evidence, weights and last checkpoint untouched."""
    from shardwright.training.checkpoint import list_checkpoints
    from shardwright.training.loop import train

    # Two micro batches a step: number 7 is the second of step 4; checkpoints at 2 and 4.
    run = build(nan_at=7)
    with pytest.raises(BuildError, match=r"step 4: found a loss that is not finite") as caught:
        train(run)
    bad = make_batch(7, 2)["uids"]
    assert all(uid in str(caught.value) for uid in bad)
    assert make_batch(6, 2)["uids"][0] not in str(caught.value)
    assert json.loads((tmp_path / "nonfinite.json").read_text())["uids"] == bad
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2]
    assert all(torch.isfinite(p).all() for p in trained(run).values())
    assert [step for step, _, _ in losses(tmp_path)] == [1, 2, 3]


def test_the_line_of_a_bad_step_is_short(ranks, tmp_path):
    """R42: a global batch of thousands is named in the evidence, not in the error's line."""
    from shardwright.training.guards import check_finite

    uids = [[[f"{number:032x}" for number in range(4096)]]]
    with pytest.raises(BuildError, match=r"and 4088 more; all are in .*nonfinite\.json") as caught:
        check_finite(3, [[1.0]], uids, float("nan"), tmp_path, ranks)
    assert len(str(caught.value)) < 1000
    assert json.loads((tmp_path / "nonfinite.json").read_text())["uids"] == uids[0][0]


def test_every_seed_that_the_schema_allows_can_be_used():
    """The largest seed still seeds the last step of the longest run."""
    from shardwright.training.parallel import seed_step

    schema = yaml.safe_load((CHECKOUT / "config/schema/train.yaml").read_text())
    seed_step(schema["properties"]["seed"]["maximum"], 10**9, 4098)


def test_fsdp2_shards_block_by_block_or_not_at_all(ranks):
    """As one piece, a model of 35 B parameters would be gathered whole on each GPU."""
    from torch.distributed.fsdp import FSDPModule

    from shardwright.training.parallel import spread
    from shardwright.training.setup import prepare_model

    model = prepare_model(tiny_model(), settings(), ["q_proj"], [])
    spread(model, "fsdp2", torch.float32, ranks)
    sharded = {type(m).__name__.removeprefix("FSDP") for m in model.modules() if isinstance(m, FSDPModule)}
    assert sharded == {"Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock", "PeftModel"}
    with pytest.raises(BuildError, match=r"fsdp2 of a Linear: found no block"):
        spread(torch.nn.Linear(2, 2), "fsdp2", torch.float32, ranks)


def test_memory_and_work_are_told_before_launch(build, capsys):
    """R43: weights, gradients and optimizer of a rank; a token meets two of four experts."""
    from shardwright.training.cost import active_parameters

    build(activation_checkpointing=True)
    told = capsys.readouterr().out
    assert "memory of a rank before activations: 0.00 GB (weights 0.00 GB" in told
    assert "GFLOP" in told
    model = tiny_model("Qwen3VLMoe")
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    total = sum(p.numel() for p in model.parameters())
    assert active_parameters(model) == (total - experts / 2, total - experts / 2)


def test_validation_switched_on_after_the_last_step_is_made_up(build, tmp_path):
    """A finished run that is started again with a cadence records the last step's validation, once."""
    from shardwright.training.loop import train

    train(build(steps=2))
    for _ in range(2):
        again = build(steps=2, validation_every=1)
        assert again.start_step == 2
        train(again)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [(r["kind"], r["step"]) for r in records] == [("train", 1), ("train", 2), ("validation", 2)]
    assert math.isfinite(records[-1]["loss"])


def test_infinite_gradient_with_finite_loss_stops_too(build, tmp_path):
    from shardwright.training.loop import train

    run = build()
    weight = next(p for name, p in run.model.named_parameters() if "lora_B" in name)
    weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(BuildError, match=r"step 1: found a gradient that is not finite"):
        train(run)


def test_batch_without_supervised_tokens_never_trains(build, tmp_path):
    """R41: it is passed over and counted; nothing but such batches is an error."""
    from shardwright.training.loop import train

    run = build(empty={1, 4}, steps=3, max_drop_share=1, drops={"too_long": 1})
    train(run)
    assert run.drops == {"no_supervised_token": 4, "too_long": 8}
    assert run.counters.num_samples == 12
    seen = [r["num_samples"] for r in map(json.loads, (tmp_path / "metrics.jsonl").open())]
    assert seen == [4, 4, 4]
    with pytest.raises(BuildError, match=r"100 in a row without a supervised token"):
        train(build(folder=tmp_path / "all", empty=set(range(1000))))


def test_too_many_drops_stop_the_run(build, tmp_path):
    """R21: what the loader loses is counted by reason and stops the run above a limit."""
    from shardwright.training.loop import train

    run = build(drops={"control_token": 20}, steps=40, max_drop_share=0.2)
    with pytest.raises(
        BuildError, match=r"dropped by the loader \(control_token \d+\); expected at most 20 %"
    ):
        train(run)


def test_resume_equals_an_uninterrupted_run(build, tmp_path):
    """R33, R46: same bits of weights and losses, same samples, no doubled metrics."""
    from shardwright.training import loop

    whole = build(folder=tmp_path / "whole", adapter_dropout=0.3, validation_every=2, schedule="linear")
    loop.train(whole)
    part = {"folder": tmp_path / "part", "adapter_dropout": 0.3, "validation_every": 2, "schedule": "linear"}
    first = build(**part)
    first.stop.signal = "SIGTERM"
    with pytest.raises(loop.Stopped, match="stopped by SIGTERM after step 0/6"):
        loop.train(first)
    second = build(**part)
    assert second.start_step == 0
    loop.train_step(second, 0, loop.next_micro_batches(iter(second.loader), second))  # lost: never saved
    third = build(**part)
    third.loader.fail_at = 7  # in step 4, after the checkpoint of step 2
    with pytest.raises(OSError, match="gone"):
        loop.train(third)
    fourth = build(**part)
    assert fourth.start_step == 2
    loop.train(fourth)
    assert same_bits(trained(whole), trained(fourth))
    assert losses(tmp_path / "whole") == losses(tmp_path / "part")
    steps = lambda name: [  # noqa: E731
        (r["kind"], r["step"]) for r in map(json.loads, (tmp_path / name / "metrics.jsonl").open())
    ]
    assert steps("whole") == steps("part")


def test_checkpoints_keep_last_save_twice_and_refuse(build, ranks, tmp_path):
    """R34: save at step 0, twice, right after restoring; another topology and damage are refused."""
    from shardwright.training.checkpoint import list_checkpoints
    from shardwright.training.loop import save, train

    run = build(keep_last=2, steps=8)
    save(run, 0)
    save(run, 0)
    train(run)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [6, 8]
    again = build(keep_last=2, steps=8)
    assert again.start_step == 8 and same_bits(trained(run), trained(again))
    save(again, 9)
    moments = [run.optimizer.state[p]["exp_avg_sq"] for p in run.model.parameters() if p.requires_grad]
    restored = [again.optimizer.state[p]["exp_avg_sq"] for p in again.model.parameters() if p.requires_grad]
    assert all(torch.equal(one, other) for one, other in zip(moments, restored, strict=True))
    with pytest.raises(BuildError, match=r"1 ranks × 0 loader workers; expected 1 × 2"):
        build(keep_last=2, loader_workers=2)
    newest = list_checkpoints(tmp_path)[-1][1]
    tensors = next((newest / "tensors").glob("*.distcp"))
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(BuildError, match=r"remove the folder .*step-00000009"):
        build(keep_last=2)


def test_full_disk_leaves_the_last_good_checkpoint(build, tmp_path):
    """R11, R46: a save that cannot be written is an error; the earlier checkpoint resumes."""
    from shardwright.training.checkpoint import list_checkpoints
    from shardwright.training.loop import save, train

    run = build(steps=2)
    train(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(BuildError, match=r"while saving .*expected room for one more checkpoint"):
            save(run, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2]
    assert not list(tmp_path.glob(".step-*"))
    assert same_bits(trained(run), trained(build(steps=2)))


def test_metrics_forget_what_came_after_the_checkpoint(tmp_path):
    """R46: a line cut short by a kill and steps after the checkpoint are not doubled."""
    from shardwright.training.metrics import MetricsLog, read_records

    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "train", "step": 2}\n{"kind": "tra')
    log = MetricsLog(path, 1, tmp_path / "board", "", "run")
    log.record("train", 2, {"loss": 0.5})
    log.close()
    assert [record["step"] for record in read_records(path)] == [1, 2]
    assert _scalars(tmp_path / "board") == {"train/loss": [(2, 0.5)]}


def _scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_run_leaves_its_numbers_for_tensorboard(build, tmp_path):
    """Read back what a run shorter than the writer's own flush wrote."""
    from shardwright.training.loop import train

    run = build(tensorboard=True, steps=3, validation_every=3)
    train(run)
    run.metrics.close()
    scalars = _scalars(tmp_path / "tensorboard")
    assert [(step, pytest.approx(loss)) for step, loss, _ in losses(tmp_path)] == scalars["train/loss"]
    assert [step for step, _ in scalars["validation/loss"]] == [0, 3]


def test_two_builds_of_one_wandb_project_are_two_runs(build, tmp_path, monkeypatch):
    """train.run is `lora` in most builds: the run's id carries what decides its weights."""
    asked = []
    service = SimpleNamespace(init=lambda **about: asked.append(about) or SimpleNamespace())
    monkeypatch.setitem(sys.modules, "wandb", service)
    for folder in ("0123456789ab", "ba9876543210"):
        build(folder=tmp_path / folder, wandb_project="vlm")
    assert [about["id"] for about in asked] == ["lora-0123456789ab", "lora-ba9876543210"]
    assert {(about["project"], about["resume"]) for about in asked} == {("vlm", "allow")}


def test_wandb_that_cannot_be_imported_is_told(tmp_path, monkeypatch):
    from shardwright.training.metrics import MetricsLog

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BuildError, match=r"train.wandb_project: found 'vlm', but wandb cannot be imported"):
        MetricsLog(tmp_path / "m.jsonl", 0, None, "vlm", "run")
