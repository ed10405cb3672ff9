"""Files appear whole or not at all, and a target has one writer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time

import pytest

from helpers import SCRIPTS
from shardwright.errors import BuildError
from shardwright.files import find_path, owner_lock, replacing, sha256_file, sole_writer, write_json


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path):
    target = tmp_path / "x.json"
    target.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as scratch:
        scratch.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_json_is_the_same_bytes_for_the_same_value(tmp_path):
    write_json(tmp_path / "a", {"b": 1, "a": "ü"})
    write_json(tmp_path / "b", {"a": "ü", "b": 1})
    assert sha256_file(tmp_path / "a") == sha256_file(tmp_path / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_second_writer_waits_for_the_first_then_takes_over(tmp_path):
    """R56: after SIGKILL of Snakemake an orphan still writes; the rerun waits for it."""
    lock = tmp_path / "locks/a.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from shardwright.files import owner_lock\n"
            f"with owner_lock(Path({str(lock)!r})): print('held', flush=True); time.sleep(30)",
        ],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BuildError, match=f"held by .* pid {holder.pid}"), owner_lock(lock, wait_s=0.3):
            pass
    finally:
        holder.kill()
        holder.wait()
    start = time.monotonic()
    with owner_lock(lock, wait_s=5):
        assert time.monotonic() - start < 5


def test_config_paths_are_found_from_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_path("config/pins/datacomp.tsv").is_file()
    (tmp_path / "own.tsv").write_text("")
    assert find_path("own.tsv").resolve() == tmp_path / "own.tsv"


def test_the_next_writer_clears_what_a_killed_one_left(tmp_path):
    target = tmp_path / "root/energon/a.tar"
    target.parent.mkdir(parents=True)
    for name in (".a.tar.123.part", ".b.tar.123.part"):
        (target.parent / name).write_text("half")
    with sole_writer(target):
        assert [path.name for path in target.parent.iterdir()] == [".b.tar.123.part"]
    assert (tmp_path / "root/locks/energon-a.tar.lock").is_file()


def test_a_file_system_without_locks_is_named_and_used(tmp_path, monkeypatch, capsys):
    """R04: Lustre mounted without flock answers ENOSYS; no file system here does, so it is patched in."""

    def refuse(*_args):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with owner_lock(tmp_path / "locks/a.lock"):
        assert "cannot lock files; going on without a lock" in capsys.readouterr().out


def test_the_lock_of_a_target_in_the_root_stays_below_the_root(tmp_path):
    """With `root: /data` a lock beside the root would need write access to `/`."""
    root = tmp_path / "data"
    root.mkdir()
    with sole_writer(root / "provenance.json", root=root):
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (root / "locks/provenance.json.lock").is_file()
