"""Rules download_shard, retry_failed and download_environment, through Snakemake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from download_helpers import QUICK, agrees, make_parquet, outcomes, photo, samples, stats
from helpers import jobs_by_rule, snakemake
from image_server import ImageServer, body, faulty_first
from shardwright.download.environment import environment_names

RULES = (
    "--allowed-rules",
    "raw",
    "download_shard",
    "download_environment",
    "audit_shard",
    "retry_failed",
    "retry_shard",
)
AUDIT = "out/audit/00000000.json"


def write_config(folder: Path, parquet: Path, **download) -> Path:
    """A build of one parquet that lies where fetch_metadata would have put it."""
    rows = pq.read_metadata(parquet).num_rows
    (folder / "pins.tsv").write_text(
        f"file\trows\tbytes\tsha256\nurls.parquet\t{rows}\t{parquet.stat().st_size}\t{'0' * 64}\n"
    )
    config = {
        "build": "test",
        "root": "out",
        "metadata": {"pins": str(folder / "pins.tsv"), "repo": "some/urls", "revision": "0" * 40},
        "model": "config/models/tiny.yaml",
        "samples": {"total": 1, "validation_fraction": 0, "per_tar": 100, "tars": {"train": 1, "val": 0}},
        "download": {**QUICK, "rows_per_shard": 100, **download},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def prepared(folder: Path, urls: list[str], **columns) -> Path:
    """Metadata of `urls` with its receipt, as fetch_metadata leaves them."""
    parquet = make_parquet(folder / "out/metadata/urls.parquet", urls, **columns)
    parquet.with_suffix(".json").write_text("{}")
    return parquet


def run(folder: Path, *targets: str, check: bool = True, timeout_s: float = 280, **download):
    config = write_config(folder, folder / "out/metadata/urls.parquet", **download)
    return snakemake(folder, *targets, *RULES, "--configfile", str(config), check=check, timeout_s=timeout_s)


def test_an_outage_fails_the_shard_and_snakemake_tries_it_again(tmp_path):
    """R12: the server answers 503 to every URL at first; the evidence of that attempt stays."""
    with ImageServer() as server:
        server.pages["*"] = faulty_first(1, body(b"", 503), body(photo(1)))
        prepared(tmp_path, [server.url(f"/{n}.jpg") for n in range(4)])
        done = run(tmp_path, "raw", min_success_rate=0.5, retries=0)
    assert "this looks like an outage" in done.stdout and "Trying to restart job" in done.stdout
    agrees(tmp_path / "out", 4)
    assert stats(tmp_path / "out")["successes"] == 4
    evidence = json.loads((tmp_path / "out/logs/download_shard/00000000.attempts/001.json").read_text())
    assert evidence["failure_classes"] == {"http_5xx": 4}
    assert "4 of 4 pictures" in (tmp_path / "out/logs/download_shard/00000000.log").read_text()


def test_retry_failed_fetches_only_what_may_have_passed_and_merges_it(tmp_path):
    """R12 and the first of the top wishes: only dns, connect, timeout, 429 and 5xx are asked again."""
    with ImageServer({f"/{n}.jpg": body(photo(n)) for n in range(6)}) as server:
        server.pages["/1.jpg"] = body(b"", 503)
        server.pages["/3.jpg"] = body(b"", 404)
        server.pages["/5.jpg"] = body(b"", 503)
        prepared(tmp_path, [server.url(f"/{n}.jpg") for n in range(6)])
        run(tmp_path, "raw", AUDIT, retries=0)
        before = samples(tmp_path / "out/raw/00000000.tar")
        assert stats(tmp_path / "out")["failure_classes"] == {"http_5xx": 2, "http_4xx": 1}
        server.pages["/1.jpg"] = server.pages["/3.jpg"] = body(photo(77))
        server.requests.clear()
        done = run(tmp_path, "retry_failed", retries=0)
        assert sorted(path for path, _ in server.requests) == ["/1.jpg", "/5.jpg"]
        assert jobs_by_rule(done.stdout) == {"retry_shard": 1, "retry_failed": 1}
        assert "2 of 6 URLs asked for again, 1 pictures gained; 4 now" in done.stdout
        assert "; 1 may pass yet (`snakemake retry_failed -R retry_shard`)" in done.stdout
        again = run(tmp_path, "retry_failed", "raw", AUDIT, retries=0)
        assert jobs_by_rule(again.stdout) == {"audit_shard": 1}  # the gained picture, and nothing else
        assert json.loads((tmp_path / AUDIT).read_text())["successes"] == 4
        server.requests.clear()
        once_more = run(tmp_path, "retry_failed", "-R", "retry_shard", retries=0)
        assert [path for path, _ in server.requests] == ["/5.jpg"]
        assert jobs_by_rule(once_more.stdout) == {"retry_shard": 1, "retry_failed": 1}
    agrees(tmp_path / "out", 6)
    after = samples(tmp_path / "out/raw/00000000.tar")
    assert {key: after[key] for key in before} == before and sorted(set(after) - set(before)) == [
        "0000000001"
    ]
    gained = after["0000000001"]
    assert gained["json"]["key"] == "0000000001" and gained["txt"] == b"caption 1"
    assert list(gained["json"]) == list(after["0000000000"]["json"])
    by_key = outcomes(tmp_path / "out")
    assert by_key["0000000001"] == ("success", None)
    assert by_key["0000000005"][1] == "http_5xx: 503 Service Unavailable"
    found = stats(tmp_path / "out")
    assert (found["successes"], found["retry_rounds"]) == (4, 1)
    report = json.loads((tmp_path / "out/retries/00000000.json").read_text())
    assert (report["asked_again"], report["gained"]) == (1, 0)


def test_content_settings_download_again_and_patience_does_not(tmp_path):
    """R50: a longer deadline must not cost two million downloads; another quality must."""
    with ImageServer({"*": body(photo(1))}) as server:
        prepared(tmp_path, [server.url("/a.jpg")])
        run(tmp_path, "raw")
        patient = run(tmp_path, "raw", "-n", thread_count=3, url_deadline_s=9, min_success_rate=0.1)
        assert "Nothing to be done" in patient.stdout
        other = run(tmp_path, "raw", "-n", encode_quality=80)
        assert jobs_by_rule(other.stdout)["download_shard"] == 1


def test_a_contradiction_between_deadlines_is_refused(tmp_path):
    with ImageServer({"*": body(photo(1))}) as server:
        prepared(tmp_path, [server.url("/a.jpg")])
        done = run(tmp_path, "raw", "--retries", "0", check=False, stall_s=3, url_deadline_s=4)
    assert done.returncode and "config download.stall_s 3: found no more than" in done.stdout


def test_an_edited_requirements_file_is_another_environment(tmp_path):
    """Its name, which download_shard has as input, holds the pins and the Python, but no comments."""
    pins = tmp_path / "old.txt"
    pins.write_text("numpy==1.26.4\n")
    names = environment_names(str(pins), "3.10")
    pins.write_text("# why\n\n  numpy==1.26.4\n")
    assert environment_names(str(pins), "3.10") == names and names[0].startswith("old-")
    assert environment_names(str(pins), "3.11") != names
    pins.write_text("numpy==1.26.3\n")
    assert environment_names(str(pins), "3.10") != names
    assert environment_names("", "3.10") == []


@pytest.mark.timeout(1000)  # 190 MB of packages; about a minute on a quiet machine
@pytest.mark.skipif(
    not (shutil.which("python3.10") or list((Path.home() / ".pyenv/versions").glob("3.10.*"))),
    reason="needs Python 3.10, which DataComp's pins were made for",
)
def test_datacomps_own_environment_is_built_and_downloads_a_shard(tmp_path):
    """S09. Its pixels without boxes are the current stack's; truncated JPEGs are refused here too."""
    cut = photo(2, 300, 200, quality=95)
    with ImageServer({"*": body(photo(1, 700, 500)), "/cut.jpg": body(cut[: len(cut) * 3 // 4])}) as server:
        prepared(tmp_path, [server.url("/a.jpg"), server.url("/cut.jpg")])
        run(tmp_path, "raw")
        current = samples(tmp_path / "out/raw/00000000.tar")
        shutil.rmtree(tmp_path / "out/raw")
        done = run(tmp_path, "raw", environment="envs/download-datacomp.txt", timeout_s=900)
    assert jobs_by_rule(done.stdout)["download_environment"] == 1
    (frozen,) = (tmp_path / "out/envs").glob("download-datacomp-*.txt")
    pins = frozen.read_text().split()
    assert {"img2dataset==1.40.0", "opencv-python-headless==4.6.0.66", "Pillow==9.3.0"} <= set(pins)
    assert not any(pin.startswith("opencv-python==") for pin in pins)
    agrees(tmp_path / "out", 2)
    found = stats(tmp_path / "out")["provenance"]
    assert (found["python"][:4], found["img2dataset"]) == ("3.10", "1.40.0")
    historic = samples(tmp_path / "out/raw/00000000.tar")
    assert historic == current and list(historic) == ["0000000000"]
    assert outcomes(tmp_path / "out")["0000000001"][1] == "truncated: a damaged JPEG"
