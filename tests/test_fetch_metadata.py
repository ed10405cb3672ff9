"""fetch_metadata against a hub on loopback that fails the way networks and hubs do (R01–R04)."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fetch_helpers import COLUMNS, GOOD, NUM_ROWS, REPO, REVISION, arguments, fetch, refused, started
from helpers import SCRIPTS, child_env, run_program
from hub_server import HubServer, sha256


@pytest.fixture
def hub():
    with HubServer() as server:
        server.add("dataset", REPO, REVISION, {"a.parquet": GOOD}, lfs=True)
        yield server


def test_a_good_transfer_is_verified_and_leaves_a_receipt_and_no_hub_cache(tmp_path, hub):
    """R04: nothing is written to the hub client's cache, so there is no lock of its to wait for."""
    program = started(tmp_path, hub)
    assert "verified" in program.communicate()[0] and program.returncode == 0
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD
    assert json.loads((tmp_path / "metadata/a.json").read_text()) == {
        "file": "a.parquet",
        "bytes": len(GOOD),
        "rows": NUM_ROWS,
        "sha256": sha256(GOOD),
        "repo": REPO,
        "revision": REVISION,
        "columns": dict(pair.split("=") for pair in COLUMNS.split()),
    }
    assert not (tmp_path / "hf").exists()
    assert {request.file for request in hub.requests} == {"a.parquet"}


@pytest.mark.parametrize("fault", ["drop:100000", "reset:100000"])
def test_a_dropped_transfer_continues_where_it_ended(tmp_path, hub, fault):
    """R03: the second request asks only for what is missing."""
    hub.fault("a.parquet", fault)
    fetch(tmp_path, hub)
    first, second = hub.gets("a.parquet")
    assert (first.range, first.status) == ("", 200)
    assert (second.range, second.status) == ("bytes=100000-", 206)
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD


def test_a_killed_job_continues_where_it_ended(tmp_path, hub):
    """R02, R03: SIGKILL in the middle; the rerun asks only for the rest."""
    hub.fault("a.parquet", "drop:100000")
    program = started(tmp_path, hub, backoff_s=60)
    assert "trying again in 60.0 s" in program.stdout.readline()
    program.kill()
    program.communicate()
    assert not list(tmp_path.glob("metadata/*.parquet"))
    fetch(tmp_path, hub)
    assert [request.range for request in hub.gets("a.parquet")] == ["", "bytes=100000-"]


@pytest.mark.parametrize("held", [b"x" * 1000, GOOD[:-1000]])
def test_a_server_that_ignores_range_sends_the_whole_file_and_is_let(tmp_path, hub, held):
    """R03: however much is here already. Counted on from there, the sender would seem to stand still."""
    partial = tmp_path / f"fetched/metadata/a.parquet.{sha256(GOOD)[:16]}.part"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(held)
    hub.fault("a.parquet", "norange:8")
    printed = fetch(tmp_path, hub, window_s=0.25)
    assert [(r.range, r.status) for r in hub.gets("a.parquet")] == [(f"bytes={len(held)}-", 200)]
    assert "trying again" not in printed and (tmp_path / "metadata/a.parquet").read_bytes() == GOOD


def test_busy_servers_are_tried_again(tmp_path, hub):
    hub.head_faults = [503]
    hub.fault("a.parquet", "500")
    printed = fetch(tmp_path, hub)
    assert "HTTP 503; trying again" in printed and "HTTP 500; trying again" in printed


def test_a_server_that_stays_down_is_given_up_with_the_reason(tmp_path, hub):
    hub.head_faults = [500] * 9
    assert "HTTP 500 (3 tries in a row without progress)" in refused(tmp_path, hub)
    assert len(hub.head_faults) == 6


def test_an_unreachable_hub_is_given_up_with_the_reason(tmp_path):
    printed = refused(tmp_path, None)
    assert "ConnectError" in printed and "run the same command again" in printed


def test_one_flipped_byte_is_transferred_again(tmp_path, hub):
    """R01: right size, wrong bytes."""
    hub.fault("a.parquet", "flip")
    assert "wrong bytes (sha256" in fetch(tmp_path, hub)
    assert [request.status for request in hub.gets("a.parquet")] == [200, 200]
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD


def test_bytes_that_stay_wrong_are_refused_with_both_hashes(tmp_path, hub):
    """R01: bounded, then both hashes, and nothing left that looks finished."""
    hub.fault("a.parquet", "flip", "flip", "flip")
    flipped = GOOD[:-9] + bytes([GOOD[-9] ^ 1]) + GOOD[-8:]
    printed = refused(tmp_path, hub)
    assert f"found sha256 {sha256(flipped)} in 3 transfers of {len(GOOD)} bytes" in printed
    assert f"expected sha256 {sha256(GOOD)} (pinned)" in printed
    assert len(hub.gets("a.parquet")) == 3
    assert not list((tmp_path / "fetched/metadata").iterdir())


def test_a_truncated_transfer_is_completed(tmp_path, hub):
    """R02: a body that ends early, with a Content-Length that agrees."""
    hub.fault("a.parquet", "cut:5000")
    fetch(tmp_path, hub)
    assert [r.range for r in hub.gets("a.parquet")] == ["", f"bytes={len(GOOD) - 5000}-"]


def test_a_dripping_server_is_left(tmp_path, hub):
    """A byte now and then keeps every socket timeout quiet; the rate limit ends it."""
    hub.fault("a.parquet", "drip", "drip", "drip")
    begun = time.monotonic()
    printed = refused(tmp_path, hub, window_s=0.5)
    assert "bytes in" in printed and "3 tries in a row" in printed
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bytes": 17}, f"found {len(GOOD)} bytes on the hub; expected 17 bytes"),
        ({"sha256": "b" * 64}, f"found sha256 {sha256(GOOD)} announced by the hub; expected sha256 bbbb"),
    ],
)
def test_another_file_than_the_pinned_one_is_refused_before_its_transfer(tmp_path, hub, wrong, message):
    assert message in refused(tmp_path, hub, **wrong)
    assert not hub.gets("a.parquet")


def test_a_branch_is_refused_even_where_it_holds_the_right_file(tmp_path, hub):
    hub.branches["main"] = REVISION
    assert "revision main: found the name of a branch" in refused(tmp_path, hub, revision="main")
    assert not hub.requests


def test_a_moved_branch_changes_nothing_for_a_pinned_revision(tmp_path, hub):
    hub.add("dataset", REPO, "b" * 40, {"a.parquet": GOOD[::-1]}, lfs=True)
    hub.branches["main"] = "b" * 40
    fetch(tmp_path, hub)
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "c" * 40}, "found no such revision at {url}/datasets/owner/urls"),
        ({"name": "absent"}, "found no such file at {url}/datasets/owner/urls"),
        ({"repo": "owner/absent"}, "found no access, or no such repository (HTTP 401)"),
    ],
)
def test_what_the_hub_does_not_have_is_named_at_once(tmp_path, hub, options, message):
    assert message.format(url=hub.url) in refused(tmp_path, hub, **options)
    assert len(hub.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_says_what_to_do(tmp_path, hub, status, monkeypatch):
    hub.gated, hub.token = {REPO: status}, "secret-token"
    monkeypatch.setenv("HF_TOKEN", "wrong-token")
    printed = refused(tmp_path, hub)
    assert f"found a gated repository (HTTP {status})" in printed
    assert f"accept its terms at {hub.url}/datasets/{REPO}, then" in printed and "HF_TOKEN" in printed
    assert "wrong-token" not in printed
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    assert "verified" in fetch(tmp_path, hub)


def test_the_token_stays_with_the_hub(tmp_path, hub, monkeypatch):
    """A signed CDN address refuses a second kind of authorisation, and must not learn the token."""
    hub.gated, hub.token = {REPO: 403}, "secret-token"
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    fetch(tmp_path, hub)
    assert {(r.host, r.has_token) for r in hub.requests} == {("127.0.0.1", True), ("localhost", False)}


def test_a_hub_that_asks_for_a_pause_gets_it(tmp_path, hub):
    hub.fault("a.parquet", "429")
    assert "HTTP 429; trying again in 1.0 s" in fetch(tmp_path, hub)


def test_offline_mode_is_named(tmp_path, hub):
    done = run_program(
        "fetch_metadata", *arguments(tmp_path), check=False, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 1 and done.stdout.startswith("error: ")
    assert "HF_HUB_OFFLINE is set" in done.stdout


def test_a_full_disk_is_named_and_what_came_is_kept(tmp_path, hub):
    """A file-size limit stands for a full disk: the write itself fails."""
    command = [sys.executable, SCRIPTS / "fetch_metadata.py", *map(str, arguments(tmp_path))]
    quoted = " ".join(f"'{part}'" for part in command)
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 100; exec {quoted}"],
        env=child_env(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "what is here already is kept" in done.stderr
    fetch(tmp_path, hub)
    assert hub.gets("a.parquet")[-1].range.startswith("bytes=")


def test_a_second_writer_names_the_first(tmp_path, hub):
    """R04: no silent wait; the lock, its holder and the way out are named."""
    hub.fault("a.parquet", "drip")
    first = started(tmp_path, hub)
    try:
        lock = tmp_path / "locks/metadata-a.parquet.lock"
        while not hub.gets("a.parquet"):
            time.sleep(0.02)
        printed = refused(tmp_path, hub, lock_wait_s=0.3)
        assert str(lock) in printed and f"pid {first.pid}" in printed
    finally:
        first.kill()
        first.communicate()
    assert "verified" in fetch(tmp_path, hub)
    assert [path.name for path in (tmp_path / "fetched/metadata").iterdir()] == ["a.parquet"]
