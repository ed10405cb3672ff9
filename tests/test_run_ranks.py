"""The launcher of ranks: clean variables, free ports, GPUs checked first, signals passed on, no orphans."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import SCRIPTS, child_env

PROGRAM = """
import os, signal, sys, time
folder, wait, mode = sys.argv[1], float(sys.argv[2]), sys.argv[3]
rank = os.environ.get("RANK", "0")
stop = []
def ask(number, frame):
    stop.append(number)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, ask)
names = [name for name in os.environ if name.startswith("SLURM_")]
facts = [os.environ.get(n, "-") for n in ("WORLD_SIZE", "MASTER_PORT")] + names
with open(f"{folder}/rank-{rank}", "w") as stream:
    stream.write(" ".join([str(os.getpid()), *facts]))
if mode == "fail" and rank == "1":
    sys.exit(3)
end = time.time() + wait
while time.time() < end and (not stop or mode == "deaf"):
    time.sleep(0.05)
if stop:
    time.sleep(1)
    open(f"{folder}/saved-{rank}", "w").close()
    sys.exit(75)
"""


def start(folder: Path, *options: str, wait: float = 0, mode: str = "", **env: str) -> subprocess.Popen:
    """Launch the program above with its files in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    program = [str(folder / "program.py"), str(folder), str(wait), mode]
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / "run_ranks.py"), *options, "--", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_env(**env),
    )


def finish(process: subprocess.Popen, deadline_s: float = 120) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=deadline_s)
    finally:
        process.kill()
    return process.returncode, output


def facts(folder: Path, rank: int, deadline_s: float = 120) -> list[str]:
    """What a rank wrote when it started: pid, world size, port, SLURM variables."""
    path, end = folder / f"rank-{rank}", time.monotonic() + deadline_s
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"rank {rank} did not start"
        time.sleep(0.05)
    return path.read_text().split(" ")


def gone(pid: int, deadline_s: float = 30) -> bool:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_two_runs_on_one_node_inside_a_slurm_job(tmp_path):
    """R60: inherited rank and SLURM variables do no harm; each run has a port of its own."""
    inherited = {"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "1"}
    runs = [start(tmp_path / name, "--ranks-per-node", "2", wait=3, **inherited) for name in "ab"]
    ports = set()
    for name, run in zip("ab", runs, strict=True):
        for rank in range(2):
            _, world_size, port, *slurm = facts(tmp_path / name, rank)
            assert (world_size, slurm) == ("2", [])
            ports.add(port)
        status, output = finish(run)
        assert status == 0, output
    assert len(ports) == 2 and "1" not in ports


def test_too_few_gpus_are_told_before_anything_starts(tmp_path):
    run = start(tmp_path, "--ranks-per-node", "2", "--expect-gpus", "2", CUDA_VISIBLE_DEVICES="3")
    status, output = finish(run, 30)
    assert status == 1
    assert "found 1 visible GPUs (CUDA_VISIBLE_DEVICES='3'); expected 2" in output
    assert not list(tmp_path.glob("rank-*"))


def test_more_nodes_need_an_allocation(tmp_path):
    status, output = finish(start(tmp_path, "--nodes", "2"), 30)
    assert status == 1
    assert "--nodes 2: found no Slurm allocation; expected an allocation of 2 nodes" in output


def test_a_failed_rank_ends_the_others_and_gives_its_status(tmp_path):
    run = start(tmp_path, "--ranks-per-node", "2", wait=100, mode="fail")
    status, output = finish(run)
    assert status == 3
    assert "rank 1 ended with status 3" in output and "Traceback" not in output
    assert gone(int(facts(tmp_path, 0)[0]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_reaches_every_rank_once_and_waits_for_its_save(tmp_path, ranks):
    run = start(tmp_path, "--ranks-per-node", str(ranks), wait=100)
    for rank in range(ranks):
        facts(tmp_path, rank)
    run.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    status, output = finish(run)
    assert status == 75, output
    assert len(list(tmp_path.glob("saved-*"))) == ranks


def test_a_rank_deaf_to_sigterm_is_killed_after_the_grace(tmp_path):
    run = start(tmp_path, "--grace-s", "1", wait=100, mode="deaf")
    pid = int(facts(tmp_path, 0)[0])
    run.send_signal(signal.SIGTERM)
    status, _ = finish(run, 60)
    assert status == 128 + signal.SIGKILL and gone(pid)


@pytest.mark.parametrize("ranks", [1, 2])
def test_kill_9_of_the_launcher_saves_then_leaves_no_orphan(tmp_path, ranks):
    """R47: ranks of a killed launcher save and end; until then the lock stays theirs."""
    lock = tmp_path / "state.lock"
    run = start(tmp_path, "--ranks-per-node", str(ranks), "--lock", str(lock), wait=100)
    pids = [int(facts(tmp_path, rank)[0]) for rank in range(ranks)]
    run.kill()
    run.wait()
    with lock.open("a") as stream, pytest.raises(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert all(gone(pid) for pid in pids)
    assert len(list(tmp_path.glob("saved-*"))) == ranks
    end = time.monotonic() + 30
    with lock.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < end, "the lock outlived the ranks"
                time.sleep(0.1)


def test_a_second_launch_waits_for_the_first(tmp_path):
    lock = tmp_path / "state.lock"
    first = start(tmp_path / "a", "--lock", str(lock), wait=100)
    pid = int(facts(tmp_path / "a", 0)[0])
    second = start(tmp_path / "b", "--lock", str(lock))
    assert "which is writing the same target" in second.stdout.readline()
    assert not (tmp_path / "b/rank-0").exists()
    first.send_signal(signal.SIGTERM)
    facts(tmp_path / "b", 0)
    assert gone(pid, 0.1)
    assert finish(first)[0] == 75
    assert finish(second)[0] == 0
