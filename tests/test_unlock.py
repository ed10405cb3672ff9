"""Whose lock is it? Recorded before Snakemake takes it, looked up before unlock.py takes it away."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from helpers import run_program, snakemake
from shardwright.files import write_json
from shardwright.runs import LOCKS, RECORD, last_run, record_run


def take_lock(folder: Path) -> None:
    """Leave the lock that a killed Snakemake leaves."""
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    (folder / LOCKS / "0.input.lock").write_text("raw/00000000.tar\n")


def unlock(folder: Path, *options: str):
    return run_program("unlock", "--directory", folder, *options, check=False)


def test_the_holder_of_a_lock_is_recorded_before_it_plans_its_jobs(tmp_path):
    """R49: between its lock and its first job a run of thousands of shards plans for minutes; whoever looks
    then must find this run. A run that finds a lock, or takes none, leaves the holder's record alone."""
    snakemake(tmp_path, "-n", "metadata")
    assert last_run(tmp_path) is None
    snakemake(tmp_path, "--rulegraph")  # ends before any job starts
    first = last_run(tmp_path)
    assert first.executor == ""
    take_lock(tmp_path)
    snakemake(tmp_path, "--rulegraph", check=False)
    assert last_run(tmp_path) == first
    done = unlock(tmp_path)
    assert done.returncode == 0 and "removed the lock" in done.stdout
    assert unlock(tmp_path).stdout == "no lock\n"


def test_a_lock_of_another_machine_or_of_nobody_known_is_left_alone(tmp_path):
    """R49: the message names the folder in full and what to do, never `rm`."""
    take_lock(tmp_path)
    unknown = unlock(tmp_path)
    assert unknown.returncode == 1 and f"error: {tmp_path}: found a lock, and no word" in unknown.stdout
    record_run(tmp_path)
    elsewhere = dataclasses.replace(last_run(tmp_path), host="login2", pid=7, slurm_job="")
    write_json(tmp_path / RECORD, dataclasses.asdict(elsewhere))
    refused = unlock(tmp_path)
    assert refused.returncode == 1 and f"error: {tmp_path}: found a lock of pid 7 on login2" in refused.stdout
    assert "run this on login2" in refused.stdout and (tmp_path / LOCKS).exists()
    assert unlock(tmp_path, "--host-is-gone").returncode == 0 and not (tmp_path / LOCKS).exists()


def test_a_live_run_is_named(tmp_path):
    """R49: this very process stands for it."""
    take_lock(tmp_path)
    record_run(tmp_path)
    alive = unlock(tmp_path, "--host-is-gone")
    assert alive.returncode == 1 and f"pid {last_run(tmp_path).pid} on" in alive.stdout


def test_help_of_the_example_server_is_help():
    done = run_program("with_example_server", "--help")
    assert done.stdout.startswith("Run a command beside the example's loopback server")
