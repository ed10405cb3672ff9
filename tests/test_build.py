"""The example build from end to end: made once undisturbed, once in another folder under fire."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from helpers import CHECKOUT, child_env, job_stats, jobs_by_rule, run_program, snakemake, snakemake_command
from shardwright.code_digest import source_files
from shardwright.files import sha256_file

pytestmark = pytest.mark.timeout(900)

SEED = int(os.environ.get("SHARDWRIGHT_TEST_SEED", "20261129"))
NUM_KILLS = 4


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of everything a build promises to reproduce: each tar and the final weights."""
    root = folder / "results/example"
    files = sorted(root.glob("energon/*.tar")) + sorted(root.glob("train/*/export/adapter/*.safetensors"))
    return {str(path.relative_to(root)): sha256_file(path) for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder that holds one undisturbed example build."""
    folder = tmp_path_factory.mktemp("undisturbed")
    started = time.monotonic()
    done = snakemake(folder, timeout_s=800)
    print(f"example build: {time.monotonic() - started:.0f} s")
    (folder / "first-run.txt").write_text(done.stdout)
    return folder


def test_a_second_run_has_nothing_to_do(built):
    done = snakemake(built)
    assert "Nothing to be done" in done.stdout
    assert not jobs_by_rule(done.stdout)


def test_the_example_shows_what_the_web_does(built):
    """Real failures, classed; real shards; every promised output is there."""
    root = built / "results/example"
    found = digests(built)
    assert len([name for name in found if name.endswith(".tar")]) == 4
    assert len([name for name in found if name.endswith(".safetensors")]) == 1
    assert len(list((root / "raw").iterdir())) == 3 * 7
    assert not list(root.rglob("*.part"))


def test_the_loss_falls_and_every_picture_of_the_report_is_there(built):
    root = built / "results/example"
    records = [json.loads(line) for line in next(root.glob("train/*/metrics.jsonl")).read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    page = (root / "report/index.html").read_text()
    assert page.count("<svg") == 3 and page.count("data:image/jpeg;base64,") == 12
    outside = re.findall(r'(?:src|href)="(?!#|data:)[^"]*|url\((?!#)[^)]*', page)
    assert not outside, "the page needs other files or the network"


def test_provenance_chains_the_digests_of_what_lies_on_disk(built):
    root = built / "results/example"
    record = json.loads((root / "provenance.json").read_text())
    assert record["tars"] == {path.name: sha256_file(path) for path in sorted(root.glob("energon/*.tar"))}
    export = next(root.glob("train/*/export"))
    assert record["checkpoint"] == {name: sha256_file(export / name) for name in record["checkpoint"]}
    assert any(name.endswith(".safetensors") for name in record["checkpoint"])
    assert record["links"]["manifest"] == sha256_file(root / "energon/manifest.json")
    assert str(built) not in json.dumps(record), "a path of this machine is in the record"


def test_a_moved_checkout_reruns_nothing_and_an_edit_reruns_exactly_its_rules(built, tmp_path):
    """R50: nothing volatile in params; a meaningful edit of a module reaches just its programs."""
    moved = tmp_path / "moved"
    for name in ("rules", "scripts", "config", "profiles", "envs"):
        shutil.copytree(CHECKOUT / name, moved / name)
    shutil.copy2(CHECKOUT / "Snakefile", moved)
    assert "Nothing to be done" in snakemake(built, "-n", checkout=moved).stdout

    module = moved / "scripts/shardwright/verdicts.py"
    module.write_text(module.read_text() + "\n# a comment only\n")
    assert "Nothing to be done" in snakemake(built, "-n", checkout=moved).stdout

    module.write_text(module.read_text() + "\nUNUSED = 1\n")
    scripts = moved / "scripts"
    users = {path.stem for path in scripts.glob("*.py") if module in source_files(scripts, path.stem)}
    assert "audit_shard" in users and "download_shard" not in users
    planned = snakemake(built, "-n", checkout=moved).stdout
    because_of_code = set(re.findall(r"rule (\w+):\n(?:    .*\n)*?    reason: .*(?:Params|Code) ha", planned))
    assert because_of_code and because_of_code <= users
    stats = job_stats(planned)
    assert "download_shard" not in stats and "fetch_metadata" not in stats
    assert stats["audit_shard"] == 7


def finished_jobs(output: str) -> set[tuple[str, str]]:
    """(rule, wildcards) of the jobs that Snakemake reported as finished."""
    jobs, finished = {}, set()
    for block in re.split(r"\n(?=\[)", output):
        head = re.search(r"^(?:local)?(?:rule|checkpoint) (\w+):$", block, flags=re.MULTILINE)
        number = re.search(r"jobid: (\d+)", block)
        if head and number:
            wildcards = re.search(r"wildcards: (.*)", block)
            jobs[number[1]] = (head[1], wildcards[1] if wildcards else "")
        for done in re.findall(r"Finished jobid: (\d+)", block):
            finished.add(jobs[done])
    return finished


def kill_something(build: subprocess.Popen, rng: random.Random) -> str:
    """SIGKILL either Snakemake itself or one running program of ours below it."""
    programs = [
        process
        for process in psutil.Process(build.pid).children(recursive=True)
        if any("/scripts/" in part and part.endswith(".py") for part in process.cmdline())
    ]
    if programs and rng.random() < 0.5:
        victim = rng.choice(programs)
        name = next(Path(part).stem for part in victim.cmdline() if part.endswith(".py"))
        victim.kill()
        return f"job {name}"
    build.kill()
    return "snakemake"


def run_and_kill(folder: Path, rng: random.Random, delay_s: float, log: Path) -> tuple[str, str]:
    """Start the build, kill something after `delay_s`, wait for Snakemake; return (victim, output)."""
    run_program("unlock", "--stale-only", "--directory", folder)
    with log.open("w") as stream:
        build = subprocess.Popen(
            snakemake_command(folder),
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=child_env(),
            start_new_session=True,
        )
        try:
            build.wait(timeout=delay_s)
            victim = "nobody"
        except subprocess.TimeoutExpired:
            victim = kill_something(build, rng)
        build.wait(timeout=600)
    return victim, log.read_text()


def test_killed_at_random_points_the_rerun_ends_with_the_same_bytes(built, tmp_path):
    """Issue: SIGKILL of jobs and of Snakemake; same bytes as undisturbed, finished work stays."""
    rng = random.Random(SEED)
    seen: set[tuple[str, str]] = set()
    victims = []
    for number in range(NUM_KILLS):
        victim, output = run_and_kill(tmp_path, rng, rng.uniform(6, 45), tmp_path / f"run-{number}.log")
        victims.append(victim)
        now = finished_jobs(output)
        assert not (now & seen), f"done twice: {sorted(now & seen)} (after {victims})"
        seen |= now
    run_program("unlock", "--stale-only", "--directory", tmp_path)
    last = snakemake(tmp_path, timeout_s=800)
    assert not (finished_jobs(last.stdout) & seen), victims
    assert digests(tmp_path) == digests(built), victims
    assert not list((tmp_path / "results/example").rglob("*.part")), victims


def test_ctrl_c_ends_the_build_and_its_loopback_server(tmp_path):
    """No process of the build outlives an interrupt, and the folder is ready for a rerun."""
    build = subprocess.Popen(
        snakemake_command(tmp_path, "raw"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=child_env(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    below: list[psutil.Process] = []
    while time.monotonic() < deadline and not any("download_shard" in " ".join(p.cmdline()) for p in below):
        time.sleep(0.3)
        below = psutil.Process(build.pid).children(recursive=True)
    assert below, "no download began within a minute"
    os.killpg(build.pid, signal.SIGINT)
    build.wait(timeout=60)
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not alive, [process.cmdline() for process in alive]
