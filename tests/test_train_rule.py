"""The rules train_model and export_checkpoint through Snakemake: stopped, resumed, exported, verified."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from helpers import child_env, run_program, snakemake, snakemake_command
from train_world import make_world

pytestmark = pytest.mark.timeout(600)  # a busy machine; some 40 s on a quiet one
RULES = ("train_model", "export_checkpoint", "checkpoint")


def target(folder: Path) -> tuple[str, ...]:
    """Options that build the checkpoint with the config in `folder`."""
    return ("checkpoint", "--configfile", str(folder / "train.yaml"), "--allowed-rules", *RULES)


DATA = {"seq_length": 256, "min_pixels": 1024, "max_pixels": 4096, "shuffle_buffer_size": 4}


def launcher_pid(folder: Path) -> int | None:
    """The pid of run_ranks.py that works in `folder`."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            here = (path / "cwd").resolve() == folder
        except OSError:
            continue
        if here and any(word.endswith(b"/run_ranks.py") for word in words) and b"--part" not in words:
            return int(path.name)
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A run that was stopped by SIGTERM as a scheduler does it, then built by the same command."""
    folder = tmp_path_factory.mktemp("rule").resolve()
    root = make_world(folder / "results/example")
    (root / "loader_check.json").write_text("{}")
    train = {"steps": 12, "micro_batch_size": 2, "global_batch_size": 4, "max_drop_share": 1}
    train |= {"loader_workers": 0, "checkpoint_every": 100, "log_every": 1}
    config = {"train": train, "data": DATA}
    (folder / "train.yaml").write_text(yaml.safe_dump(config))
    first = subprocess.Popen(
        snakemake_command(folder, *target(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_env(),
    )
    log, end = root / "logs/train_model/lora.log", time.monotonic() + 200
    while not log.exists() or "step 3/12" not in log.read_text():
        assert time.monotonic() < end and first.poll() is None, first.stdout.read()
        time.sleep(0.05)
    os.kill(launcher_pid(folder), signal.SIGTERM)
    stopped, _ = first.communicate(timeout=200)
    left = sorted(path.name for path in (root / "train/lora").iterdir())
    second = snakemake(folder, *target(folder)).stdout
    facts = {"status": first.returncode, "stopped": stopped, "left": left, "second": second}
    return {"folder": folder, "root": root, **facts}


def test_stopped_training_is_resumed_by_the_same_command(built):
    """R47: a stopped job fails, its state survives Snakemake's clean-up, the rerun goes on from it."""
    assert built["status"] == 1
    assert "stopped by SIGUSR1 after step" in built["stopped"]
    assert built["left"] == ["state", "state.lock"]
    assert "starting after step 0/12" not in built["second"]
    run = built["root"] / "train/lora"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").open() if '"train"' in line]
    assert steps == list(range(1, 13))
    completed = json.loads((run / "completed.json").read_text())
    assert completed["num_samples"] == 48 and completed["last_loss"] < completed["first_loss"] - 0.3
    resolved = yaml.safe_load((run / "resolved_config.yaml").read_text())
    assert resolved["settings"]["steps"] == 12
    assert resolved["batches"].startswith("global batch 4 = micro batch 2")
    again = snakemake(built["folder"], *target(built["folder"]), "--dry-run").stdout
    assert "Nothing to be done" in again


def test_export_opens_as_a_user_would(built):
    """R45: adapter and merged model from their files, in a fresh process, answer like the trained model."""
    run = built["root"] / "train/lora"
    errors = json.loads((run / "export.json").read_text())["mean_logit_error"]
    assert set(errors) == {"checkpoint", "adapter", "merged"} and max(errors.values()) < 1e-4
    adapter = json.loads((run / "export/adapter/adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "shardwright/tiny-qwen3-vl"
    assert adapter["revision"].endswith("2")
    card = (run / "export/README.md").read_text()
    manifest = json.loads((run / "completed.json").read_text())["inputs"]["manifest_sha256"]
    assert manifest in card and "base_model: shardwright/tiny-qwen3-vl" in card


def test_damaged_checkpoint_and_wrong_prefix_are_refused(built, tmp_path):
    """R45: an adapter whose keys carry another class's prefix would load and do nothing: an error."""
    from safetensors.torch import load_file, save_file

    from shardwright.errors import BuildError
    from shardwright.training.export import load_adapter
    from train_helpers import tiny_model

    run = built["root"] / "train/lora"
    wrong = tmp_path / "adapter"
    shutil.copytree(run / "export/adapter", wrong)
    path = wrong / "adapter_model.safetensors"
    renamed = {key.replace("language_model.", ""): value for key, value in load_file(str(path)).items()}
    save_file(renamed, str(path), metadata={"format": "pt"})
    with pytest.raises(BuildError, match=r"\d+ adapter tensors missing, \d+ unknown"):
        load_adapter(tiny_model(), wrong)

    damaged = tmp_path / "checkpoint"
    shutil.copytree(run / "checkpoint", damaged)
    tensors = next((damaged / "tensors").glob("*.distcp"))
    data = bytearray(tensors.read_bytes())
    data[len(data) // 2] ^= 1
    tensors.write_bytes(data)
    done = run_program(
        "export_checkpoint",
        *("--completed", run / "completed.json", "--checkpoint", damaged),
        *("--import-report", built["root"] / "models/tiny/import.json"),
        *("--export", tmp_path / "out/export", "--report", tmp_path / "out/export.json"),
        check=False,
    )
    assert done.returncode == 1 and "expected sha256" in done.stdout
    assert not (tmp_path / "out/export").exists()
