"""The example build through profiles/slurm, from parquet to export, on fake nodes; then on two nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from shardwright.runs import last_run
from slurm.cluster import SlurmCluster
from slurm.conftest import CHECKOUT, SLURM_PYTHON, finish, start_snakemake

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]

ROOT = "results/example"
SUBMITTED = re.compile(r"has been submitted with SLURM jobid (\d+) \(log: \S*/rule_(\w+)/")
STEPS = 8


@dataclass
class Build:
    """One finished build: where, what Snakemake said, which Slurm jobs each rule had."""

    cluster: SlurmCluster
    folder: Path
    text: str
    jobs: dict[str, list[str]]

    def field(self, job: str, name: str) -> str:
        """One field of `scontrol --details show job`."""
        text = self.cluster.run("scontrol", "--details", "show", "job", job)
        return re.search(rf"\b{name}=(\S*)", text).group(1)

    def losses(self, run: str) -> list[float]:
        """The training losses of a run, in order of its steps."""
        lines = (self.folder / ROOT / f"train/{run}/metrics.jsonl").read_text().splitlines()
        return [row["loss"] for row in map(json.loads, lines) if row["kind"] == "train"]


def overlay(folder: Path, name: str, **train: object) -> str:
    """Write a config that makes the example smaller and sets its training; return its path."""
    settings = {
        "download": {"rows_per_shard": 200},
        "samples": {"per_tar": 256},
        "train": {
            "steps": STEPS,
            "checkpoint_every": 2,
            "log_every": 1,
            "validation_every": 0,
            "tensorboard": False,
        }
        | train,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def programs_in(folder: Path, name: str) -> list[int]:
    """Return the processes that run the program `name` in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name.encode() in (path / "cmdline").read_bytes() and (path / "cwd").resolve() == folder:
                found.append(int(path.name))
    return found


def hang_in_training(cluster: SlurmCluster, folder: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait for a checkpoint of train_model, then stop its processes and let its time limit come."""
    jobs: list[str] = []
    while run.poll() is None and not jobs:
        time.sleep(0.5)
        lines = cluster.run("squeue", "--noheader", "--format=%i %k").splitlines()
        jobs = [line.split()[0] for line in lines if "rule_train_model" in line]
    assert jobs, run.output.read_text()[-6000:]
    (job,) = jobs
    state = folder / ROOT / "train/lora/state"
    while run.poll() is None and not any(state.glob("*/step-*")):
        time.sleep(0.05)
    for pid in programs_in(folder.resolve(), "train_model.py"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now")


def fetch_on_login_node(folder: Path, config: str) -> None:
    """What the profile advises where nodes have no internet; it also saves two waits in the queue."""
    command = [SLURM_PYTHON, "-m", "snakemake", "metadata", f"{ROOT}/models/tiny/hub.json", "--cores", "2"]
    command += ["--snakefile", CHECKOUT / "Snakefile", "--workflow-profile", CHECKOUT / "profiles/default"]
    command += ["--directory", folder, "--configfile", config]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert last_run(folder).executor == "local"


@pytest.fixture(scope="module")
def build(cluster: SlurmCluster, tmp_path_factory) -> Iterator[Build]:
    """The example, fetched here and built through the profile; its training runs into a time limit."""
    folder = tmp_path_factory.mktemp("build")
    config = overlay(folder, "example.yaml")
    fetch_on_login_node(folder, config)
    run = start_snakemake(cluster, folder, "checkpoint", "--configfile", config, "--jobs", "6")
    hang_in_training(cluster, folder, run)
    text = finish(run, timeout_s=900)
    jobs: dict[str, list[str]] = {}
    for job, rule in SUBMITTED.findall(text):
        jobs.setdefault(rule, []).append(job)
    assert run.returncode == 0, text[-6000:]
    yield Build(cluster, folder, text, jobs)


def test_example_build_end_to_end(build: Build) -> None:
    """Each job of a rule is a Slurm job, CPU rules are on CPU nodes; a second run has nothing to do."""
    assert len(build.jobs["download_shard"]) == len(build.jobs["audit_shard"]) == 2
    assert len(build.jobs["convert_tar"]) == 2
    for rule, jobs in build.jobs.items():
        if rule not in ("import_model", "train_model", "export_checkpoint"):
            assert {build.field(job, "Partition") for job in jobs} == {"cpu"}, rule
            assert {build.field(job, "NodeList") for job in jobs} == {"cpu1"}, rule
    assert last_run(build.folder).executor == "slurm"
    assert (build.folder / ROOT / "train/lora/export.json").is_file()
    config = str(build.folder / "example.yaml")
    again = start_snakemake(build.cluster, build.folder, "checkpoint", "--configfile", config)
    assert "Nothing to be done" in finish(again)


def test_gpu_rules_have_an_exclusive_node_of_eight_gpus(build: Build) -> None:
    """R53, R59, S14: partition, one node, eight GPUs, exclusive, memory in one form, for both GPU rules."""
    for rule, mem in (("import_model", "400000M"), ("train_model", "800000M")):
        job = build.jobs[rule][0]
        assert build.field(job, "Partition") == "gpu"
        assert build.field(job, "NodeList") in ("gpu1", "gpu2")
        assert build.field(job, "NumNodes") == "1"
        assert build.field(job, "OverSubscribe") == "NO" and build.field(job, "NumCPUs") == "64"
        assert "gpu:8" in build.cluster.run("scontrol", "show", "job", job)
        assert build.field(job, "MinMemoryNode") == mem


def test_training_resumes_after_its_time_limit(build: Build) -> None:
    """R46, R47: the first job hangs and ends in TIMEOUT, the retry starts from its last checkpoint."""
    first, second = build.jobs["train_model"]
    assert build.field(first, "JobState") == "TIMEOUT"
    assert build.field(second, "JobState") == "COMPLETED"
    assert "Trying to restart" in build.text
    assert len(build.losses("lora")) == STEPS
    log = (build.folder / ROOT / "logs/train_model/lora.log").read_text()
    steps = [int(step) for step in re.findall(rf"^step (\d+)/{STEPS} ", log, flags=re.MULTILINE)]
    assert steps[0] > 2 and steps[-1] == STEPS, log[-2000:]


def test_two_nodes_give_the_loss_of_one(build: Build) -> None:
    """R60: `train.nodes: 2` starts one agent on each node of the allocation; losses equal those of two ranks
    on one node, bit for bit, and the job has eight GPUs on each node."""
    shapes = {"one": {"nodes": 1, "ranks_per_node": 2}, "two": {"nodes": 2, "ranks_per_node": 1}}
    for name, shape in shapes.items():
        config = overlay(build.folder, f"{name}.yaml", run=name, steps=2, checkpoint_every=2, **shape)
        target = f"{ROOT}/train/{name}/completed.json"
        run = start_snakemake(build.cluster, build.folder, target, "--configfile", config)
        text = finish(run, timeout_s=500)
        assert run.returncode == 0, text[-6000:]
        ((job, _),) = SUBMITTED.findall(text)
        assert build.field(job, "NumNodes") == str(shape["nodes"])
        assert build.field(job, "TresPerNode").endswith("gpu:8")
    assert len(build.losses("one")) == 2
    assert build.losses("one") == build.losses("two")
