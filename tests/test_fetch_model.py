"""fetch_model and the two pin helpers against a hub on loopback (R01–R04)."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetch_model
import pin_metadata
import pin_model
from helpers import SCRIPTS, child_env
from hub_server import HubServer, hub_endpoint, sha256
from shardwright.errors import BuildError
from shardwright.file_pins import COLUMNS, read_file_pins, write_table
from shardwright.layout import read_pins

REVISION = "a" * 40
REPO = "owner/Tiny-VL"
FILES = {
    "config.json": b'{"model_type": "tiny"}\n',
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(200_000),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(100_000),
    "processor/preprocessor_config.json": b'{"patch_size": 16}\n',
}
FIRST, SECOND = sorted(FILES)[1:3]


@pytest.fixture
def hub():
    with HubServer() as server:
        server.add("model", REPO, REVISION, {**FILES, "README.md": b"# Tiny\n", ".gitattributes": b""})
        server.lfs.update((FIRST, SECOND))
        yield server


@pytest.fixture
def pins(tmp_path):
    path = tmp_path / "tiny.tsv"
    write_table(path, COLUMNS, [(name, len(data), sha256(data)) for name, data in sorted(FILES.items())])
    return path


def arguments(root, table, **changed: object) -> list[str]:
    """The command line of fetch_model below `root`."""
    options = {
        "source": "hub",
        "repo": REPO,
        "revision": REVISION,
        "files": table,
        "backoff-s": 0.05,
        "folder": root / "models/tiny/hub",
        "receipt": root / "models/tiny/hub.json",
        **{key.replace("_", "-"): value for key, value in changed.items()},
    }
    return [str(part) for key, value in options.items() for part in (f"--{key}", value)]


def run(hub: HubServer, program, args: list[str]) -> str:
    """Run a program's main in this process against `hub`; return what it printed."""
    printed = io.StringIO()
    with hub_endpoint(hub.url), contextlib.redirect_stdout(printed):
        program.main(args)
    return printed.getvalue()


def refused(hub: HubServer, program, args: list[str]) -> str:
    """Run a program that must refuse; return its error."""
    with pytest.raises(BuildError) as error:
        run(hub, program, args)
    return str(error.value)


def fetched(root) -> dict[str, bytes]:
    """What lies in the model's folder."""
    folder = root / "models/tiny/hub"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_each_file_is_verified_and_a_second_run_transfers_nothing(tmp_path, hub, pins):
    assert "4 fetched, 0 already here" in run(hub, fetch_model, arguments(tmp_path, pins))
    assert fetched(tmp_path) == FILES
    receipt = json.loads((tmp_path / "models/tiny/hub.json").read_text())
    assert (receipt["repo"], receipt["revision"]) == (REPO, REVISION)
    assert receipt["files"] == {
        name: {"bytes": len(data), "sha256": sha256(data)} for name, data in FILES.items()
    }
    num_requests = len(hub.requests)
    assert "0 fetched, 4 already here" in run(hub, fetch_model, arguments(tmp_path, pins))
    assert len(hub.requests) == num_requests


def test_a_killed_fetch_keeps_files_and_parts(tmp_path, hub, pins):
    """R03: SIGKILL in the middle of one file; the rerun transfers the rest of that file alone."""
    hub.fault(SECOND, "drop:60000")
    program = subprocess.Popen(
        [sys.executable, SCRIPTS / "fetch_model.py", *arguments(tmp_path, pins, backoff_s=60, threads=1)],
        env=child_env(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "hf")),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert f"{SECOND}: RemoteProtocolError" in program.stdout.readline()
    program.kill()
    program.communicate()
    assert not (tmp_path / "models/tiny/hub.json").exists()
    before = len(hub.requests)
    assert "2 fetched, 2 already here" in run(hub, fetch_model, arguments(tmp_path, pins))
    again = {(r.file, r.range) for r in hub.requests[before:] if r.method == "GET" and r.status != 302}
    assert again == {(SECOND, "bytes=60000-"), ("processor/preprocessor_config.json", "")}
    assert fetched(tmp_path) == FILES


def test_bytes_that_stay_wrong_are_refused_with_both_hashes(tmp_path, hub, pins):
    """R01."""
    hub.fault(FIRST, "flip", "flip", "flip")
    printed = refused(hub, fetch_model, arguments(tmp_path, pins, threads=1))
    assert FIRST in printed and f"expected sha256 {sha256(FILES[FIRST])} (pinned)" in printed
    assert not hub.gets("processor/preprocessor_config.json")  # no further file is begun
    assert FIRST not in fetched(tmp_path) and not (tmp_path / "models/tiny/hub.json").exists()


def test_a_damaged_file_is_noticed_and_replaced(tmp_path, hub, pins):
    run(hub, fetch_model, arguments(tmp_path, pins))
    (tmp_path / "models/tiny/hub" / FIRST).write_bytes(FILES[FIRST][:-1] + b"?")
    assert "1 fetched, 3 already here" in run(hub, fetch_model, arguments(tmp_path, pins))
    assert fetched(tmp_path) == FILES


@pytest.mark.parametrize("stray", ["model-00003-of-00002.safetensors", "processor/old.json", ".hidden"])
def test_a_stray_file_is_refused(tmp_path, hub, pins, stray):
    """A leftover shard of another revision would be loaded with the rest."""
    path = tmp_path / "models/tiny/hub" / stray
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert f"{path}: found 1 file(s) that the pin table does not name" in refused(
        hub, fetch_model, arguments(tmp_path, pins)
    )
    assert path.exists() and not hub.requests


@pytest.mark.parametrize("table", ["", "config/pins/models/absent.tsv"])
def test_a_model_without_pins_is_refused_with_the_command_that_writes_them(tmp_path, hub, table):
    printed = refused(hub, fetch_model, arguments(tmp_path, table))
    named = table or "config/pins/models/tiny.tsv"
    assert f"python scripts/pin_model.py --repo {REPO} --revision {REVISION} --table {named}" in printed
    assert not hub.requests


def test_a_branch_is_refused(tmp_path, hub, pins):
    hub.branches["main"] = REVISION
    assert "revision main" in refused(hub, fetch_model, arguments(tmp_path, pins, revision="main"))


def test_a_mirror_folder_takes_the_hubs_place(tmp_path, hub, pins):
    for name, data in FILES.items():
        path = tmp_path / "mirror" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run(hub, fetch_model, arguments(tmp_path, pins, source=tmp_path / "mirror"))
    assert fetched(tmp_path) == FILES and not hub.requests


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("../evil\t1\t" + "0" * 64, "a path inside the repository"),
        ("/etc/passwd\t1\t" + "0" * 64, "a path inside the repository"),
        ("a\t-1\t" + "0" * 64, "bytes '-1'"),
        ("a\t1\tABC", "64 lowercase hex digits"),
        ("config.json\t1\t" + "0" * 64 + "\nconfig.json\t1\t" + "0" * 64, "config.json twice"),
        ("", "no rows"),
    ],
)
def test_malformed_tables_are_refused(tmp_path, row, message):
    table = tmp_path / "table.tsv"
    table.write_text("\t".join(COLUMNS) + f"\n{row}\n")
    with pytest.raises(BuildError, match=message):
        read_file_pins(table)


def test_pin_model_writes_what_fetch_model_then_verifies(tmp_path, hub):
    """Large files are pinned from the listing, small ones from their bytes; weights are not moved."""
    table = tmp_path / "written.tsv"
    args = ["--repo", REPO, "--revision", REVISION, "--table", str(table)]
    assert "4 files, 300,042 bytes" in run(hub, pin_model, args)
    assert {(pin.file, pin.bytes, pin.sha256) for pin in read_file_pins(table)} == {
        (name, len(data), sha256(data)) for name, data in FILES.items()
    }
    assert {r.file for r in hub.requests} == {"tree", "config.json", "processor/preprocessor_config.json"}
    run(hub, fetch_model, arguments(tmp_path, table))
    assert fetched(tmp_path) == FILES


@pytest.mark.parametrize(
    ("fault", "message"),
    [("flip", "found git blob"), ("503", "found HTTP 503; expected an answer of the hub")],
)
def test_pin_model_writes_no_table_it_could_not_check(tmp_path, hub, fault, message):
    hub.fault("config.json", fault)
    table = tmp_path / "written.tsv"
    args = ["--repo", REPO, "--revision", REVISION, "--table", str(table)]
    assert message in refused(hub, pin_model, args)
    assert not table.exists()


def test_pin_model_skips_what_it_is_told(tmp_path, hub):
    table = tmp_path / "written.tsv"
    args = ["--repo", REPO, "--revision", REVISION, "--table", str(table), "--skip", "*.safetensors"]
    run(hub, pin_model, args)
    assert [pin.file for pin in read_file_pins(table)] == [
        "config.json",
        "processor/preprocessor_config.json",
    ]
    assert "no file to pin" in refused(hub, pin_model, [*args, "*.json"])


def test_pin_metadata_writes_a_table_that_the_build_reads(tmp_path, hub):
    for number in (2, 1):
        columns = {name: [str(row) for row in range(number)] for name in ("uid", "url", "text")}
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet")
    args = ["--folder", str(tmp_path), "--table", str(tmp_path / "own.tsv")]
    assert "3 rows in all" in run(hub, pin_metadata, args)
    assert [(pin.name, pin.rows) for pin in read_pins(tmp_path / "own.tsv")] == [("part-1", 1), ("part-2", 2)]
    message = "found no column 'caption'; it has uid, url, text"
    assert message in refused(hub, pin_metadata, [*args, "--columns", "url=url text=caption uid=uid"])
    assert "no .parquet file" in refused(hub, pin_metadata, ["--folder", "/proc/self/fd", *args[2:]])
