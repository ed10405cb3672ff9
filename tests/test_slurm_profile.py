"""The Slurm profile against the real rules, without a cluster: nothing missing, nothing misspelt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yte

from helpers import CHECKOUT, SCRIPTS, child_env, run_program
from shardwright.container import container_command
from shardwright.errors import BuildError
from shardwright.launch import Launch, child_command
from shardwright.placement import read_dry_run, render
from shardwright.runs import last_run

PROFILE = CHECKOUT / "profiles/slurm/config.yaml"
GPU_RULES = {"import_model", "train_model"}
FORBIDDEN_IN_EXTRA = ("--mem", "--gres", "--gpus", "--ntasks", "--nodes", "--time", "--partition")


def profile(monkeypatch, **env: str) -> dict:
    """Read the profile as Snakemake does, under the site's variables in `env` alone."""
    for name in [name for name in os.environ if name.startswith("SHARDWRIGHT_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return yte.process_yaml(PROFILE.read_text(), require_use_yte=True)


def rules_with_a_program() -> set[str]:
    """Return every rule that runs something, but those that stay on the login node."""
    found = set()
    for path in (CHECKOUT / "rules").glob("*.smk"):
        parts = re.split(r"^ *(?:rule|checkpoint) (\w+):$", path.read_text(), flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if re.search(r"^ +shell:", body, flags=re.MULTILINE) and "localrule: True" not in body:
                found.add(name)
    return found


def test_every_rule_has_resources_and_no_entry_is_misspelt(monkeypatch):
    """Snakemake ignores an unknown rule in set-resources without a word, so this test does not (R59)."""
    settings = profile(monkeypatch)
    # Without a job step, the plugin's arrays build one shard again and again (seen with 2.8.0).
    assert settings["default-resources"]["mpi"] == 0 and "slurm-array-jobs" not in settings
    assert set(settings["set-resources"]) == rules_with_a_program()
    assert set(settings["set-threads"]) <= rules_with_a_program()
    for name, resources in settings["set-resources"].items():
        assert {"mem_mb", "runtime"} <= set(resources), name


def test_gpu_rules_take_a_whole_node_and_nothing_else_a_gpu(monkeypatch):
    """R53, R59, S14: one form each, memory in MB only, nothing in slurm_extra that the plugin forbids."""
    resources = profile(monkeypatch, SHARDWRIGHT_MAIL="me@example.org")["set-resources"]
    for name, asked in resources.items():
        forms = {"gpu", "gres", "gpus"} & set(asked)
        assert len(forms) == (1 if name in GPU_RULES else 0), name
        assert not {"mem", "mem_mb_per_cpu", "tasks", "tasks_per_gpu", "ntasks"} & set(asked), name
        assert not any(word in asked.get("slurm_extra", "") for word in FORBIDDEN_IN_EXTRA), name
    assert resources["import_model"]["gpu"] == 8 and resources["import_model"]["nodes"] == 1
    assert resources["train_model"]["gres"] == "'gpu:8'"
    for name in GPU_RULES:
        assert resources[name]["slurm_extra"].startswith("'--exclusive --mail-type=FAIL,END")
        assert resources[name]["slurm_partition"] == "gpu"


@pytest.mark.parametrize("preemptible", ["", "1"])
def test_requeue_or_retries_never_neither_nor_both_options(monkeypatch, preemptible):
    """R56: Slurm requeues only where a preempted job would else be waited for in vain."""
    settings = profile(monkeypatch, SHARDWRIGHT_PREEMPTIBLE=preemptible)
    assert settings["retries"] == 2
    assert ("slurm-requeue" in settings) == bool(preemptible)
    assert ("slurm-no-requeue" in settings) != ("slurm-requeue" in settings)


def test_site_facts_come_from_the_environment(monkeypatch):
    """Account, partitions and container are variables at the top; unset ones leave no trace."""
    plain = profile(monkeypatch)
    assert "slurm_account" not in plain["default-resources"]
    site = profile(
        monkeypatch,
        SHARDWRIGHT_ACCOUNT="lab",
        SHARDWRIGHT_CPU_PARTITION="short",
        SHARDWRIGHT_GPU_PARTITION="h100",
        SHARDWRIGHT_CONTAINER="apptainer:/images/train.sif",
        SHARDWRIGHT_CPU_EXTRA="--licenses=scratch",
    )
    assert site["default-resources"]["slurm_account"] == "lab"
    assert site["default-resources"]["slurm_partition"] == "short"
    assert site["default-resources"]["slurm_extra"] == "'--licenses=scratch'"
    assert site["set-resources"]["train_model"]["slurm_partition"] == "h100"
    assert site["set-resources"]["train_model"]["container"] == "'apptainer:/images/train.sif'"
    assert site["max-jobs-per-timespan"] == "60/1m"


DRY_RUN = """
rule train_model:
    output: a
    threads: 64
    resources: mem_mb=800000, slurm_partition=gpu, runtime=1440, gres=gpu:8, nodes=2, slurm_extra=--exclusive
rule gather:
    input: a
    resources: tmpdir=/tmp, slurm_partition=cpu
localrule here:
    output: b
    resources: tmpdir=/tmp, mem_mb=1000, slurm_partition=cpu
"""


def test_placement_reads_nodes_gpus_and_gpu_hours():
    """GPUs are counted on each node; a rule that only gathers is no job; a local rule is not submitted."""
    table = render(read_dry_run(DRY_RUN)).splitlines()
    assert table[1].split() == [
        "train_model",
        "1",
        "gpu",
        "2",
        "8",
        "64",
        "800",
        "GB",
        "24:00",
        "--exclusive",
    ]
    assert table[2].split()[:4] == ["here", "1", "this", "machine"]
    assert "1 jobs to submit, 1 on this machine; at most 384 GPU hours" in table[-1]


def test_placement_before_submitting_for_the_reference_build(tmp_path: Path):
    """`snakemake placement` shows 216 shards and both GPU rules, without a cluster; the record says Slurm."""
    python = CHECKOUT / ".venv-slurm/bin/python"
    if not python.exists():
        pytest.skip("no .venv-slurm with the executor plugin: make slurm-env")
    done = subprocess.run(
        [
            *(str(python), "-m", "snakemake", "placement", "--snakefile", str(CHECKOUT / "Snakefile")),
            *("--directory", str(tmp_path), "--workflow-profile", str(PROFILE.parent)),
            *("--configfile", str(CHECKOUT / "config/datacomp.yaml")),
            *("--slurm-init-seconds-before-status-checks", "1"),
        ],
        env=child_env(),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["download_shard"][1:3] == ["216", "cpu"]
    assert rows["train_model"][1:5] == ["1", "gpu", "1", "8"] and "--exclusive" in rows["train_model"]
    assert rows["import_model"][1:5] == ["1", "gpu", "1", "8"]
    written = [path for path in tmp_path.glob("results/**/*") if path.is_file()]
    assert last_run(tmp_path).executor == "slurm"
    assert [path.name for path in written] == ["placement.log"] and written[0].read_text() in done.stdout


def test_placement_for_this_machine_and_a_refused_command(tmp_path: Path):
    """The default profile submits nothing; Snakemake's refusal is passed on."""
    options = ["--snakefile", CHECKOUT / "Snakefile", "--directory", tmp_path]
    options += ["--workflow-profile", CHECKOUT / "profiles/default"]
    local = run_program("placement", *options)
    assert "all on this machine; nothing is submitted" in local.stdout and "train_model" in local.stdout
    refused = run_program("placement", *options, "--no-such-option", check=False)
    assert refused.returncode == 1 and "no-such-option" in refused.stdout


def test_containers_are_rendered_exactly(tmp_path: Path, monkeypatch):
    """The command for both kinds: srun's options for pyxis, `apptainer exec` else; folders that it needs."""
    monkeypatch.chdir(tmp_path)
    job = Launch(
        1, 1, 8, 30.0, "127.0.0.1:0", [str(SCRIPTS / "train_model.py"), "--state", "s"], "apptainer:/x.sif"
    )
    command = child_command(job)
    assert command[:4] == ["apptainer", "exec", "--nv", "--no-home"]
    assert command[4:8] == ["--bind", str(tmp_path), "--bind", str(CHECKOUT)] or command[4:8] == [
        *("--bind", str(CHECKOUT)),
        *("--bind", str(tmp_path)),
    ]
    assert command[8:13] == ["--pwd", str(tmp_path), "/x.sif", "python3", str(SCRIPTS / "run_ranks.py")]
    options, inner = container_command(
        "pyxis:nvcr.io#nvidia/pytorch:25.09-py3", [sys.executable, "/data/none/a.py"], [tmp_path]
    )
    assert options[0] == "--container-image=nvcr.io#nvidia/pytorch:25.09-py3"
    assert f"--container-workdir={tmp_path}" in options and inner == ["python3", "/data/none/a.py"]
    with pytest.raises(BuildError, match=r"expected pyxis:IMAGE or apptainer:IMAGE"):
        container_command("docker:x", ["python3"], [])


def test_seven_of_eight_gpus_end_the_job_before_the_program_starts(tmp_path: Path):
    """R53, R60: a node that shows seven devices is refused by name, and nothing was imported or loaded."""
    program = tmp_path / "program.py"
    program.write_text("open('started', 'w')")
    done = run_program(
        "run_ranks",
        *("--expect-gpus", 8, "--", program),
        check=False,
        CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6",
    )
    assert done.returncode == 1 and "found 7 visible GPUs" in done.stdout and "expected 8" in done.stdout
    assert not Path("started").exists()
