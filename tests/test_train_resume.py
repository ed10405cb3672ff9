"""Resume, bit for bit, through the real program: Energon's loader, the example's model, real kills."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from train_ranks import RankGroup, run_ranks
from train_world import arguments, make_world, run_train

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(600)  # a busy machine; some 20 s a case on a quiet one
CASES = {"1-rank-0-workers": (1, 0), "1-rank-2-workers": (1, 2), "2-ranks-2-workers": (2, 2)}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def metrics_of(out: Path) -> Path | None:
    return next(out.glob("state/*/metrics.jsonl"), None)


def num_steps(out: Path) -> int:
    path = metrics_of(out)
    return path.read_text().count('"kind": "train"') if path else 0


def with_children(pids: list[int]) -> list[int]:
    """Processes and their children: a scheduler signals loader workers too."""
    found = list(pids)
    for pid in pids:
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def interrupt(group: RankGroup, out: Path, after_step: int, number: int) -> list[int]:
    """Wait until a step is on record, signal ranks and loader workers, return the exit statuses."""
    deadline = time.monotonic() + 200
    while num_steps(out) < after_step:
        assert time.monotonic() < deadline, group.log.read_text()[-3000:]
        time.sleep(0.01)
    for pid in with_children([process.pid for process in group.ranks]):
        os.kill(pid, number)
    return group.wait()


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_uninterrupted(world, tmp_path, case):
    """R33, R46, R47: SIGTERM and SIGKILL at random steps, then resumed: same bits, same samples.

    Compared: the published tensors, each step's loss, gradient norm and uids, each validation.
    """
    num_ranks, workers = CASES[case]
    run = {
        "ranks_per_node": num_ranks,
        "loader_workers": workers,
        "steps": 10,
        "adapter_dropout": 0.1,
        "checkpoint_every": 3,
        "validation_every": 5,
        "validation_batches": 1,
        "max_drop_share": 1,
        "parallel": "fsdp2" if num_ranks == 2 else "ddp",
    }
    whole, part = tmp_path / "whole", tmp_path / "part"
    undisturbed = RankGroup(num_ranks, tmp_path / "whole.log", run_train, arguments(world, whole, **run))
    rng = random.Random(case)
    options = arguments(world, part, **run)
    stopped_at = []
    for number, expected in ((signal.SIGTERM, 75), (signal.SIGKILL, -9)):
        group = RankGroup(num_ranks, tmp_path / f"{number}.log", run_train, options)
        after = rng.randint(num_steps(part) + 1, num_steps(part) + 2)
        assert set(interrupt(group, part, after, number)) == {expected}, group.log.read_text()[-3000:]
        stopped_at.append(num_steps(part))
    assert "the state is saved: run the same command again" in (tmp_path / "15.log").read_text()
    assert stopped_at[-1] < 10 and not (part / "completed.json").exists()
    text = run_ranks(num_ranks, tmp_path / "end.log", run_train, options)
    assert "starting after step 0/" not in text
    assert set(undisturbed.wait()) == {0}, undisturbed.log.read_text()[-3000:]

    keys = ("kind", "step", "loss", "grad_norm", "learning_rate", "num_tokens", "uids_sha256")
    records = [
        [[r.get(key) for key in keys] for r in map(json.loads, (out / "metrics.jsonl").open())]
        for out in (whole, part)
    ]
    assert records[0] == records[1]
    assert [r[1] for r in records[0] if r[0] == "train"] == list(range(1, 11))
    digests = [
        json.loads((out / "checkpoint/checkpoint.json").read_text())["sha256"] for out in (whole, part)
    ]
    tensors = [
        {name: digest for name, digest in found.items() if name.endswith(".distcp")} for found in digests
    ]
    probes = [torch.load(out / "checkpoint/probe.pt") for out in (whole, part)]
    assert tensors[0].keys() == tensors[1].keys() and torch.equal(probes[0]["logits"], probes[1]["logits"])
    for old, new in zip(
        *(sorted((out / "checkpoint/tensors").glob("*.distcp")) for out in (whole, part)), strict=True
    ):
        assert old.read_bytes() == new.read_bytes(), old.name


def test_other_workers_are_refused_and_a_finished_run_is_only_published_again(world, tmp_path):
    """R34: another ranks × workers product is told; a rebuild of a finished run trains nothing anew."""
    run = {"steps": 2, "max_drop_share": 1, "dtype": "bf16", "tensorboard": True}
    options = arguments(world, tmp_path, **run)
    run_ranks(1, tmp_path / "first.log", run_train, options)
    first = (tmp_path / "metrics.jsonl").read_bytes()
    for name in ("metrics.jsonl", "completed.json", "resolved_config.yaml"):
        (tmp_path / name).unlink()
    text = run_ranks(1, tmp_path / "again.log", run_train, options)
    assert "starting after step 2/2" in text and (tmp_path / "metrics.jsonl").read_bytes() == first
    completed = json.loads((tmp_path / "completed.json").read_text())
    assert completed["num_samples"] == 8 and completed["num_dropped"] == completed["num_adjusted"] == {}
    (events,) = tmp_path.glob("state/*/tensorboard/events*")
    assert events.stat().st_size > 500
    group = RankGroup(
        1,
        tmp_path / "other.log",
        run_train,
        arguments(world, tmp_path, **run, loader_workers=2),
    )
    assert group.wait() == [1]
    assert "a state of 1 ranks × 0 loader workers; expected 1 × 2" in group.log.read_text()
    check_bf16_export(world, tmp_path)


def check_bf16_export(world: Path, out: Path) -> None:
    """R45: a run in bf16 on a model that is stored in fp32 exports; its answers are bf16-near."""
    import export_checkpoint

    export_checkpoint.main(
        [
            *("--completed", str(out / "completed.json"), "--checkpoint", str(out / "checkpoint")),
            *("--import-report", str(world / "models/tiny/import.json")),
            *("--export", str(out / "export"), "--report", str(out / "export.json")),
        ]
    )
    errors = json.loads((out / "export.json").read_text())["mean_logit_error"]
    assert set(errors) == {"checkpoint", "adapter", "merged"} and 1e-4 < errors["merged"] < 0.05
    assert (out / "export").stat().st_mode & 0o777 == 0o755


def test_fewer_samples_than_readers_and_one_tar(tmp_path):
    """One train tar of 3 samples on 2 ranks trains; 2 ranks × 2 workers are told; nothing hangs."""
    world = make_world(tmp_path, num_train=3, num_val=1)
    run = {
        "ranks_per_node": 2,
        "steps": 3,
        "micro_batch_size": 1,
        "global_batch_size": 2,
        "validation_every": 3,
    }
    run_ranks(2, tmp_path / "one.log", run_train, arguments(world, tmp_path / "one", **run, max_drop_share=1))
    assert json.loads((tmp_path / "one/completed.json").read_text())["num_samples"] == 6
    more = arguments(world, tmp_path / "more", **run, loader_workers=2)
    group = RankGroup(2, tmp_path / "more.log", run_train, more)
    assert group.wait() == [1, 1]
    assert "found 3 samples; expected at least 4" in group.log.read_text()
