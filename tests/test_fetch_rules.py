"""The rules fetch_metadata and fetch_model through Snakemake, against a hub on loopback."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from helpers import CHECKOUT, jobs_by_rule, snakemake
from hub_server import HubServer, sha256
from shardwright.errors import BuildError
from shardwright.file_pins import COLUMNS, write_table
from shardwright.metadata import parse_columns

REVISION = "a" * 40


def parquet_bytes(seed: int) -> bytes:
    """A parquet of 100 rows with the columns that are needed."""
    sink = pa.BufferOutputStream()
    columns = {name: [f"{seed}{row:031x}" for row in range(100)] for name in ("uid", "url", "text")}
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


PARQUETS = {f"part-{number}.parquet": parquet_bytes(number) for number in range(3)}


@pytest.fixture
def hub(monkeypatch):
    with HubServer() as server:
        server.add("dataset", "owner/urls", REVISION, dict(PARQUETS), lfs=True)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def build(tmp_path):
    """The example's config, with the metadata of the loopback hub."""
    lines = ["file\trows\tbytes\tsha256"]
    lines += [f"{name}\t100\t{len(data)}\t{sha256(data)}" for name, data in sorted(PARQUETS.items())]
    (tmp_path / "pins.tsv").write_text("\n".join(lines) + "\n")
    config = yaml.safe_load((CHECKOUT / "config/config.yaml").read_text())
    config["metadata"] = {
        "pins": "pins.tsv",
        "repo": "owner/urls",
        "revision": REVISION,
        "columns": "url=url text=text uid=uid",
        "attempts": 1,
    }
    write(tmp_path, config)
    return tmp_path, config


def write(folder, config: dict) -> None:
    """Write the build's config file."""
    (folder / "own.yaml").write_text(yaml.safe_dump(config))


def run(folder, *args: str, check: bool = True):
    """Run Snakemake in `folder` with its config."""
    return snakemake(folder, *args, "--configfile", str(folder / "own.yaml"), check=check)


def test_one_job_a_file_and_finished_files_are_never_fetched_again(build, hub):
    """R03, S10: the rerun fetches the one file that failed, and what is here is not asked for again."""
    folder, config = build
    hub.fault("part-1.parquet", "500")
    failed = run(folder, "metadata", "--keep-going", check=False)
    assert failed.returncode != 0 and jobs_by_rule(failed.stdout)["fetch_metadata"] == 3
    assert "HTTP 500 (1 tries in a row without progress)" in failed.stdout

    (folder / "results/example/metadata/part-2.json").unlink()  # its job runs again, its file is kept
    write(folder, {**config, "metadata": {**config["metadata"], "attempts": 7}})  # reruns nothing
    num_requests = len(hub.requests)
    again = run(folder, "metadata").stdout
    assert jobs_by_rule(again)["fetch_metadata"] == 2
    assert "part-1.parquet: fetched" in again and "part-2.parquet: already here" in again
    assert {request.file for request in hub.requests[num_requests:]} == {"part-1.parquet"}


def test_an_unpinned_parquet_is_refused_before_anything_runs(build):
    """S10: nothing reads whatever lies in the folder."""
    folder, _ = build
    stray = folder / "results/example/metadata/stray.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"")
    done = run(folder, "-n", check=False)
    assert done.returncode != 0
    assert (
        "stray.parquet: found 1 parquet file(s) that no pin names; expected only the 3 pinned" in done.stdout
    )


def test_a_bad_column_map_is_refused_before_anything_runs(build):
    folder, config = build
    config["metadata"]["columns"] = "url=url text=text"
    write(folder, config)
    done = run(folder, "-n", check=False)
    assert done.returncode != 0
    assert "config key metadata.columns: found no column for uid" in done.stdout


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("url=url text=text uid=uid sha=sha256", "found 'sha=sha256'; expected each of the roles"),
        ("url=url url=link text=text uid=uid", "found 'url=link'"),
        ("url text uid", "found 'url'"),
        ("url= text=text uid=uid", "found 'url='"),
    ],
)
def test_malformed_column_maps(columns, message):
    with pytest.raises(BuildError, match=message):
        parse_columns(columns)


def test_a_changed_pin_table_fetches_only_what_is_new(build, hub):
    """R03: the receipt is the only output; the files outlive a failed or repeated job."""
    folder, config = build
    files = {"config.json": b"{}\n", "model.safetensors": b"weights" * 1000}
    hub.add("model", "owner/tiny", REVISION, files)
    pins = [(name, len(data), sha256(data)) for name, data in files.items()]
    write_table(folder / "model.tsv", COLUMNS, pins[:1])
    model = {"name": "tiny", "repo": "owner/tiny", "revision": REVISION, "files": "model.tsv", "class": "Any"}
    (folder / "model.yaml").write_text(yaml.safe_dump(model))
    write(folder, {**config, "model": "model.yaml"})
    target = "results/example/models/tiny/hub.json"
    run(folder, target)
    write_table(folder / "model.tsv", COLUMNS, pins)
    done = run(folder, target)
    assert "2 files, 7,003 bytes, all verified; 1 fetched, 1 already here" in done.stdout
    hubs = folder / "results/example/models/tiny/hub"
    assert {path.name: path.read_bytes() for path in hubs.iterdir()} == files
