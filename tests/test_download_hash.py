"""R05: payloads against the SHA-256 that the metadata announces; a wrong column is a config error."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from download_helpers import COLUMNS, agrees, command, make_parquet, outcomes, pages, photo, samples, stats
from helpers import child_env
from image_server import ImageServer, body, faulty_first
from shardwright.download.hashes import check_hashes
from shardwright.errors import BuildError
from shardwright.metadata import parse_columns

WITH_HASH = f"{COLUMNS} sha256=sha256"


def digest(number: int, algorithm: str = "sha256") -> str:
    """The digest of the payload of page `number`."""
    return hashlib.new(algorithm, photo(number)).hexdigest()


def run(root: Path, hashes: list[str | None], program: str = "", columns: str = WITH_HASH, **changes):
    """Download one page a hash, from a server of its own, as shard 0 below `root`."""
    served = changes.pop("served", {})
    with ImageServer({**pages(len(hashes)), **served}) as server:
        urls = [server.url(f"/{number}.jpg") for number in range(len(hashes))]
        parquet = make_parquet(root / "metadata/urls.parquet", urls)
        table = pq.read_table(parquet)
        pq.write_table(table.append_column("sha256", pa.array(hashes, pa.string())), parquet)
        call = command(root, parquet, len(urls), **changes)
        call[call.index("--columns") + 1] = columns
        call = [part.replace("download_shard.py", program) if program else part for part in call]
        more = ("--report", str(root / "retry.json")) if program else ()
        done = subprocess.run(
            [*call, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=child_env(no_proxy="*"),
            timeout=120,
        )
        done.num_requests = len(server.requests)
        return done


def three_right_one_wrong() -> list[str | None]:
    """Hashes of four pages; one in upper case, the third of another payload."""
    return [digest(0), digest(1).upper(), digest(99), digest(3)]


def test_record_keeps_the_sample_and_counts_the_mismatch(tmp_path):
    """The default. Members and parquet are those of a build without the role."""
    done = run(tmp_path / "a", [*three_right_one_wrong(), None, ""])
    assert done.returncode == 0, done.stdout
    agrees(tmp_path / "a", 6)
    assert stats(tmp_path / "a")["sha256"] == {"policy": "record", "match": 3, "mismatch": 1, "unknown": 2}
    assert "SHA-256 as announced (record): 3 match, 1 mismatch, 2 unknown" in done.stdout
    plain = run(tmp_path / "b", [*three_right_one_wrong(), None, ""], columns=COLUMNS)
    assert plain.returncode == 0 and "SHA-256" not in plain.stdout
    assert "sha256" not in stats(tmp_path / "b") and "hashes_given" not in stats(tmp_path / "b")["cleaned"]
    ours, theirs = (samples(tmp_path / name / "raw/00000000.tar") for name in "ab")
    assert sorted(ours) == sorted(theirs)
    for key in ours:
        assert ours[key]["jpg"] == theirs[key]["jpg"]
        assert list(ours[key]["json"]) == list(theirs[key]["json"])
    schemas = [pq.read_schema(tmp_path / name / "raw/00000000.parquet") for name in "ab"]
    assert schemas[0].equals(schemas[1])


def test_strict_refuses_the_mismatch_by_name(tmp_path):
    """The message names both digests; a payload that is no picture is compared too, before decoding."""
    page = b"<html>moved</html>"
    done = run(
        tmp_path, [*three_right_one_wrong(), None, digest(5)],
        served={"/5.jpg": body(page)}, sha256_policy="strict",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    agrees(tmp_path, 6)
    by_key = outcomes(tmp_path)
    assert by_key["0000000002"][1] == f"hash_mismatch: found {digest(2)}, expected {digest(99)}"
    found = hashlib.sha256(page).hexdigest()
    assert by_key["0000000005"][1] == f"hash_mismatch: found {found}, expected {digest(5)}"
    kept = stats(tmp_path)
    assert (kept["successes"], kept["failure_classes"]) == (4, {"hash_mismatch": 2})
    assert kept["status_dict"]["hash_mismatch: not the bytes that the metadata announced"] == 2
    assert kept["sha256"] == {"policy": "strict", "match": 3, "mismatch": 2, "unknown": 1}
    assert "2  hash_mismatch: not the bytes" in done.stdout


@pytest.mark.parametrize("policy", ["record", "strict"])
def test_all_mismatching_is_a_config_error(tmp_path, policy):
    """A SHA-256 of something else: nothing is published, and the message speaks of the column."""
    done = run(
        tmp_path, [digest(100 + number) for number in range(20)], sha256_policy=policy, min_success_rate=0.2
    )
    assert done.returncode != 0 and done.num_requests == 20
    assert "config key metadata.columns, role sha256" in done.stdout
    assert "found 20 of 20 payloads with another SHA-256 than announced" in done.stdout
    assert "wrong column or algorithm" in done.stdout and "outage" not in done.stdout
    assert not list((tmp_path / "raw").glob("*"))
    assert list((tmp_path / "logs/download_shard/00000000.attempts").glob("*.json"))


def test_an_md5_column_is_a_config_error_before_any_request(tmp_path):
    """Even four rows tell, and no URL is asked for."""
    done = run(tmp_path, [digest(number, "md5") for number in range(4)])
    assert done.returncode != 0 and done.num_requests == 0
    assert "found 4 of 4 values that are not 64 hex digits" in done.stdout
    assert "sha256=sha256" in done.stdout and "name the column with the SHA-256" in done.stdout
    assert not list((tmp_path / "raw").glob("*"))


def test_one_malformed_value_is_unknown(tmp_path):
    """A stray value among good ones is no reason to stop."""
    done = run(tmp_path, [digest(0), digest(1), "n/a"], sha256_policy="strict")
    assert done.returncode == 0, done.stdout
    assert stats(tmp_path)["sha256"] == {"policy": "strict", "match": 2, "mismatch": 0, "unknown": 1}
    assert stats(tmp_path)["cleaned"]["hashes_malformed"] == 1


def test_the_web_decays_without_an_error():
    """One in seven, or all of a handful, is no config error; 19 of 20 is one."""
    check_hashes("00000000", {"match": 86, "mismatch": 14, "unknown": 0})
    check_hashes("00000000", {"match": 0, "mismatch": 19, "unknown": 0})
    check_hashes("00000000", {"match": 0, "mismatch": 0, "unknown": 500})
    with pytest.raises(BuildError, match=r"19 of 20 payloads"):
        check_hashes("00000000", {"match": 1, "mismatch": 19, "unknown": 0})


def test_a_retry_adds_to_the_counts(tmp_path):
    """What comes at the second time is compared too."""
    hashes = three_right_one_wrong()
    served = {"/3.jpg": faulty_first(99, body(b"", 503), body(photo(3)))}
    assert run(tmp_path, hashes, served=served, retries=0).returncode == 0
    assert stats(tmp_path)["sha256"]["match"] == 2
    done = run(tmp_path, hashes, "retry_shard.py", retries=0)
    assert done.returncode == 0, done.stdout
    agrees(tmp_path, 4)
    assert stats(tmp_path)["sha256"] == {"policy": "record", "match": 3, "mismatch": 1, "unknown": 0}


def test_the_role_is_optional():
    """Without it the columns are what they were; twice is refused."""
    assert "sha256" not in parse_columns(COLUMNS)
    assert parse_columns(WITH_HASH)["sha256"] == "sha256"
    with pytest.raises(BuildError, match=r"sha256 at most once"):
        parse_columns(f"{WITH_HASH} sha256=md5")
