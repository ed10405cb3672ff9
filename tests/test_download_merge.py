"""A merge into a finished shard: killed at any step it loses nothing; the audit takes its turn."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import audit_shard
from audit_helpers import COLUMNS, read_audit, small_photos, small_shard
from helpers import SCRIPTS, child_env
from raw_shards import ShardFiles, make_rows, write_shard
from shardwright.download.triple import Triple, finish_merge, publish

KILLED_MERGE = """
import os, sys
from pathlib import Path
from shardwright.download.triple import Triple, publish_merged
steps, folder, *target = sys.argv[1:]
replace, done = Path.replace, []
def replace_or_die(path, other):
    if len(done) == int(steps):
        os._exit(9)
    done.append(path)
    return replace(path, other)
Path.replace = replace_or_die
publish_merged(Path(folder), Triple(*map(Path, target)))
"""


def audit_options(files: ShardFiles) -> list[str]:
    """The command line of audit_shard for a shard of 40 rows."""
    audit = files.tar.parents[1] / "audit"
    options = {
        "shard": files.tar.stem,
        **vars(files),
        "rows": 40,
        "columns": COLUMNS,
        "samples": audit / f"{files.tar.stem}.samples.parquet",
        "report": audit / f"{files.tar.stem}.json",
    }
    return [str(part) for name, value in options.items() for part in (f"--{name}", value)]


def num_audited(files: ShardFiles) -> int:
    """Audit the shard; return how many successes were found."""
    audit_shard.main(audit_options(files))
    return read_audit(files)[0]["successes"]


def finished_and_merged(folder: Path) -> tuple[ShardFiles, Path, int, int]:
    """A finished shard, a folder with a better one of its name, and the successes of both."""
    old = small_shard(folder / "out")
    samples, failures = make_rows(3, 40, photos=small_photos(), failure_rate=0.1, seed=2)
    new = write_shard(folder / "new/raw", 3, samples, failures)
    scratch = folder / "out/scratch/.00000003.abc.part"
    shutil.copytree(new.tar.parent, scratch)
    return old, scratch, num_audited(old), len(samples)


def merge(old: ShardFiles, scratch: Path, steps: int) -> int:
    """Publish the merged shard in a process that dies before its rename number `steps` (from 0)."""
    command = [sys.executable, "-c", KILLED_MERGE, str(steps), scratch, old.tar, old.parquet, old.stats]
    return subprocess.run(command, env=child_env(PYTHONPATH=str(SCRIPTS)), check=False).returncode


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_killed_at_any_step_the_old_shard_stands_or_the_new_one_comes(tmp_path, steps):
    """R10. 0: before the merge is decided; 1 to 3: between its files; 4: not at all."""
    old, scratch, before, after = finished_and_merged(tmp_path)
    assert before < after
    assert merge(old, scratch, steps) == (0 if steps == 4 else 9)
    # The audit ends what was begun; a half-swapped triple it would refuse.
    assert num_audited(old) == (before if steps == 0 else after)
    assert not (tmp_path / "out/scratch/00000003.merged").exists()
    assert sorted(path.name for path in old.tar.parent.iterdir()) == [
        "00000003.parquet", "00000003.tar", "00000003_stats.json",
    ]  # fmt: skip


def test_a_new_download_throws_a_begun_merge_away(tmp_path):
    """It belonged to the triple that was there before."""
    old, scratch, _, _ = finished_and_merged(tmp_path)
    assert merge(old, scratch, 1) == 9
    fresh = small_shard(tmp_path / "fresh")
    triple = Triple(old.tar, old.parquet, old.stats)
    publish(Triple(fresh.tar, fresh.parquet, fresh.stats), triple)
    stats = old.stats.read_bytes()
    finish_merge(triple)
    assert old.stats.read_bytes() == stats and not (tmp_path / "out/scratch/00000003.merged").exists()


def test_the_audit_waits_for_whoever_replaces_the_shard(tmp_path):
    """The lock is the one that download_shard and retry_shard hold."""
    old = small_shard(tmp_path / "out")
    lock = tmp_path / "out/locks/raw-00000003.tar.lock"
    lock.parent.mkdir(parents=True)
    report = tmp_path / "out/audit/00000003.json"
    command = [sys.executable, str(SCRIPTS / "audit_shard.py"), *audit_options(old)]
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        audit = subprocess.Popen(command, env=child_env(), stdout=subprocess.PIPE)
        assert audit.stdout.readline().startswith(b"waiting for ")
        assert not report.exists()
    audit.communicate(timeout=60)
    assert audit.returncode == 0 and report.exists()
