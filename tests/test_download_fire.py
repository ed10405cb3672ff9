"""Workers that die, stop or never finish; killed programs; full disks; outages (R08 to R12, S07)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from download_helpers import (
    agrees,
    command,
    download,
    make_parquet,
    only_the_triple,
    outcomes,
    pages,
    photo,
    samples,
    stats,
)
from helpers import child_env
from image_server import ImageServer, body, faulty_first, hang


def start(root: Path, parquet: Path, rows: int, **changes) -> subprocess.Popen:
    return subprocess.Popen(
        command(root, parquet, rows, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=child_env(no_proxy="*"),
    )


def worker_of(process: subprocess.Popen) -> psutil.Process:
    for _ in range(600):
        for child in psutil.Process(process.pid).children(recursive=True):
            if "shardwright.download.worker" in " ".join(child.cmdline()):
                return child
        time.sleep(0.05)
    raise AssertionError("no worker started")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "the worker died with SIGKILL"), (signal.SIGSTOP, "no row finished for 3 s")],
)
def test_a_worker_killed_or_stopped_mid_shard_is_replaced(tmp_path, number, reason):
    """R09: img2dataset's pool waits for ever."""
    with ImageServer(pages(4)) as server:
        server.pages["/4.jpg"] = faulty_first(1, hang, body(photo(4)))
        urls = [server.url(f"/{n}.jpg") for n in range(5)]
        parquet = make_parquet(tmp_path / "metadata/urls.parquet", urls)
        process = start(
            tmp_path, parquet, 5, timeout_s=2.5, url_deadline_s=2.9, stall_s=3, retries=0, thread_count=2
        )
        while not server.seen["/4.jpg"] and process.poll() is None:
            time.sleep(0.02)
        worker_of(process).send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    agrees(tmp_path, 5)
    assert stats(tmp_path)["successes"] == 5
    evidence = json.loads((tmp_path / "logs/download_shard/00000000.attempts/001.json").read_text())
    assert evidence["reason"].startswith(reason) and f"attempt 1 failed: {reason}" in said
    only_the_triple(tmp_path)


def test_a_shard_that_is_too_slow_is_given_up_and_its_workers_are_gone(tmp_path):
    """R09, R12: the evidence stays, nothing is published."""
    with ImageServer({"*": hang}) as server:
        done = download(
            tmp_path, [server.url("/a.jpg")], check=False, timeout_s=60, url_deadline_s=60, stall_s=61,
            shard_deadline_s=4, attempts=1,
        )  # fmt: skip
        assert done.returncode == 1
    assert "not finished after 4 s (download.shard_deadline_s), in each of 1 attempts" in done.stdout
    assert not (tmp_path / "raw/00000000_stats.json").exists()
    assert (tmp_path / "logs/download_shard/00000000.attempts/001.json").exists()


def test_a_server_that_stops_answering_mid_shard_costs_its_own_pictures_only(tmp_path):
    """R08, R09, R13: the shard ends in time, the rest is kept, the silence has its class."""
    with ImageServer() as server:

        def page(handler):
            (body(photo(1)) if len(server.requests) <= 10 else hang)(handler)

        server.pages["*"] = page
        urls = [server.url(f"/{n}.jpg") for n in range(20)]
        download(tmp_path, urls, timeout_s=1, url_deadline_s=2, retries=0, thread_count=4)
    agrees(tmp_path, 20)
    assert stats(tmp_path)["successes"] == 10 and stats(tmp_path)["failure_classes"] == {"timeout": 10}


def test_the_worker_ends_with_its_supervisor(tmp_path):
    with ImageServer({"*": hang}) as server:
        parquet = make_parquet(tmp_path / "metadata/urls.parquet", [server.url("/a.jpg")])
        process = start(tmp_path, parquet, 1, timeout_s=60, url_deadline_s=60, stall_s=61)
        worker = worker_of(process)
        process.kill()
        process.communicate()
        worker.wait(timeout=10)


def test_killed_at_twenty_moments_the_result_is_an_undisturbed_runs(tmp_path):
    """R10: after each kill there is either nothing or a whole shard; the end is what it would have been."""
    rng = random.Random(20)
    count = 12
    with ImageServer(pages(count)) as server:
        for n in range(0, count, 4):
            server.pages[f"/{n}.jpg"] = body(b"", 404)
        urls = [server.url(f"/{n}.jpg") for n in range(count)]
        began = time.monotonic()
        download(tmp_path / "clean", urls)
        whole = time.monotonic() - began
        parquet = make_parquet(tmp_path / "killed/metadata/urls.parquet", urls)
        root, published = tmp_path / "killed", 0
        for _ in range(20):
            process = start(root, parquet, count)
            time.sleep(rng.uniform(0, 1.2 * whole))
            process.kill()
            process.communicate()
            if (root / "raw/00000000_stats.json").exists():
                agrees(root, count)
                published += 1
                for path in (root / "raw").iterdir():
                    path.unlink()
        download(root, urls)
    agrees(root, count)
    only_the_triple(root)
    clean, killed = samples(tmp_path / "clean/raw/00000000.tar"), samples(root / "raw/00000000.tar")
    assert clean == killed and len(clean) == 9
    assert outcomes(tmp_path / "clean") == outcomes(root)
    assert published < 20


def test_a_full_disk_fails_at_once_and_keeps_nothing_half(tmp_path):
    """R11, S07: img2dataset prints the error and goes on; here the shard fails, once, and says so."""
    with ImageServer({f"/{n}.jpg": body(photo(n, 400, 300, quality=95)) for n in range(40)}) as server:
        urls = [server.url(f"/{n}.jpg") for n in range(40)]
        limited = ("bash", "-c", 'ulimit -f 512; exec "$@"', "limited")
        done = download(tmp_path, urls, check=False, prefix=limited, attempts=3)
        assert done.returncode == 1
        assert "writing failed: [Errno 27] File too large" in done.stdout and "attempt 2" not in done.stdout
        assert not (tmp_path / "raw").exists() or not any((tmp_path / "raw").iterdir())
        assert not any((tmp_path / "scratch").iterdir())
        download(tmp_path, urls)
    agrees(tmp_path, 40)


def test_below_the_success_rate_the_shard_fails_with_its_evidence_kept(tmp_path):
    """R12: a shard of which every URL failed counts as finished in img2dataset."""
    with ImageServer({"*": body(b"", 503)}) as server:
        urls = [server.url(f"/{n}.jpg") for n in range(4)]
        done = download(tmp_path, urls, check=False, min_success_rate=0.5, retries=0)
    assert done.returncode == 1 and not (tmp_path / "raw/00000000_stats.json").exists()
    assert (
        "found success rate 0.0% (0 of 4)" in done.stdout
        and "4 http_5xx: the servers were in trouble" in done.stdout
    )
    evidence = json.loads((tmp_path / "logs/download_shard/00000000.attempts/001.json").read_text())
    assert evidence["failure_classes"] == {"http_5xx": 4} and evidence["http_status"] == {"503": 4}
