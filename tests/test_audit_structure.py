"""Faults of structure fail a raw shard: file, member, found, expected, next step."""

from __future__ import annotations

import tarfile

import pyarrow.parquet as pq
import pytest

from audit_helpers import audit, run_audit, small_shard
from shardwright.errors import BuildError


def _swap(first, second):
    def edit(members):
        members[first], members[second] = members[second], members[first]
        return members

    return edit


def _rename(number, name):
    return lambda members: [*members[:number], (name, members[number][1]), *members[number + 1 :]]


STRUCTURE = {
    "last member missing": ({"edit_members": lambda m: m[:-1]}, "found the end of the tar; expected"),
    "txt missing": ({"edit_members": lambda m: m[:2] + m[3:]}, "in the place of .*txt; expected three adj"),
    "json missing": ({"edit_members": lambda m: m[:1] + m[2:]}, "in the place of .*json; expected three adj"),
    "jpg missing": ({"edit_members": lambda m: m[1:]}, r"found \.json as first member of a key"),
    "interleaved": ({"edit_members": _swap(2, 3)}, "in the place of .*txt; expected three adjacent"),
    "other order": ({"edit_members": _swap(0, 1)}, r"found \.json as first member of a key; expected .*jpg"),
    "foreign suffix": ({"edit_members": _rename(0, "000000030000.png")}, "found the suffix 'png'"),
    "dotted key": ({"edit_members": _rename(0, "00000003.0000.jpg")}, "found a key with a dot"),
    "folder in key": ({"edit_members": _rename(0, "a/000000030000.jpg")}, "found the key 'a/000000030000'"),
    "key of another shard": (
        {"edit_members": _rename(0, "000000040000.jpg")},
        "expected digits that start",
    ),
    "extra member": ({"edit_members": lambda m: [*m, ("readme.txt", b"")]}, "found the key 'readme'"),
    "doubled sample": (
        {"edit_members": lambda m: m[:3] + m},
        "a key that has its three members",
    ),
    "doubled member": ({"edit_members": lambda m: m[:1] + m}, "in the place of .*json; expected three"),
    "no members": ({"edit_members": lambda m: []}, "found no member; expected at least one sample"),
    "cut in half": ({"edit_tar": lambda data: data[: len(data) // 2]}, "the tar is truncated"),
    "cut by the end blocks": ({"edit_tar": lambda data: data.rstrip(b"\0")}, "the tar is truncated"),
    "not a tar": ({"edit_tar": lambda data: b"<html>" * 9999}, "byte 0: found .*; expected"),
    "empty file": ({"edit_tar": lambda data: b""}, "byte 0: found 0 bytes; expected a tar"),
    "damaged header": (
        {"edit_tar": lambda data: data[:5000].replace(b"PaxHeader", b"PaxHeadeX") + data[5000:]},
        "found a header with checksum",
    ),
    "one sample too few": (
        {"edit_members": lambda m: m[3:]},
        "is not in the tar.; expected the",
    ),
    "stats count": (
        {"edit_stats": lambda s: s | {"count": 39}},
        "found 39 attempts; expected 40, as the",
    ),
    "stats successes": (
        {"edit_stats": lambda s: s | {"successes": 1}},
        "found 1 successes; expected",
    ),
    "stats failures": ({"edit_stats": lambda s: s | {"failed_to_resize": 0}}, "found 0 failed_to_resize"),
    "stats without count": ({"edit_stats": lambda s: {}}, "found KeyError 'count'; expected a JSON object"),
    "stats with a text": (
        {"edit_stats": lambda s: s | {"count": "40"}},
        "found {'count': '40'}",
    ),
    "a row too few": ({"edit_rows": lambda rows: rows[1:]}, "found 39 rows; expected 40, as the plan says"),
    "a key twice": (
        {"edit_rows": lambda rows: [*rows[1:], rows[1]]},
        "in more than one row; expected one",
    ),
    "an unknown status": (
        {"edit_rows": lambda rows: [{**rows[0], "status": "lost"}, *rows[1:]]},
        "found status 'lost'",
    ),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_each_fault_of_structure_fails_the_shard(name, tmp_path):
    """R10, R23, R24, R25, S04, S07: file, member, found, expected, next step; and no output."""
    options, message = STRUCTURE[name]
    files = small_shard(tmp_path, **options)
    with pytest.raises(BuildError, match=message) as caught:
        audit(files)
    text = str(caught.value)
    assert str(files.tar.parent) in text
    assert f"Next: delete {files.tar} and run the same command again" in text
    assert not list(tmp_path.glob("audit/*"))


def test_a_key_with_a_sample_in_the_wrong_place_keeps_its_name(tmp_path):
    """The message names the member, so that a person can look at it."""
    files = small_shard(tmp_path, edit_members=_swap(2, 3))
    with tarfile.open(files.tar) as tar:
        members = tar.getnames()
    with pytest.raises(BuildError, match=f"{files.tar} member {members[2]}: found in the place of"):
        audit(files)


def test_the_program_ends_with_status_1_and_one_line(tmp_path):
    files = small_shard(tmp_path, edit_tar=lambda data: data[:-20_000])
    done = run_audit(files, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {files.tar} byte ")
    assert done.stdout.count("\n") == 1


def test_stats_that_are_not_json(tmp_path):
    files = small_shard(tmp_path)
    files.stats.write_text("{")
    with pytest.raises(BuildError, match=r"_stats\.json: found JSONDecodeError"):
        audit(files)


def test_a_parquet_that_is_none(tmp_path):
    files = small_shard(tmp_path)
    files.parquet.write_bytes(b"PAR1" * 10)
    with pytest.raises(BuildError, match=r"parquet: found .*; expected a parquet with the columns key"):
        audit(files)


def test_a_parquet_without_the_columns(tmp_path):
    files = small_shard(tmp_path)
    pq.write_table(pq.read_table(files.parquet).drop_columns(["status"]), files.parquet)
    with pytest.raises(
        BuildError, match=r"parquet: found .*status.*; expected a parquet with the columns key"
    ):
        audit(files)
