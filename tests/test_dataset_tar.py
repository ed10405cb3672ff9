"""convert_tar: the byte format, digests on the way, the same bytes whatever surrounds the job."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest
import webdataset

from dataset_helpers import (
    PROMPT,
    REPO,
    REVISION,
    TINY_PHOTOS,
    audit_rows,
    audited_shards,
    convert_all,
    convert_args,
    plan_stems,
    reference_conversation,
    reference_tar,
    select,
    write_audit,
    write_totals,
)
from helpers import run_program
from raw_shards import make_rows, write_shard
from shardwright import disk_writer
from shardwright.conversation import ConversationMaker
from shardwright.convert import Outputs, convert
from shardwright.errors import BuildError
from shardwright.tarformat import HeaderTemplate, TarWriter, padded, tar_index


def sha256(data: bytes) -> str:
    """The digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Two raw shards in thread order, selected into tars of 8; the samples in key order."""
    root = tmp_path_factory.mktemp("planned")
    samples = audited_shards(root, [20, 13])
    select(root, 2, 33, (5, 0), per_tar=8)
    return root, samples


def test_the_bytes_are_those_of_the_described_format(planned):
    """Issue point 1: SHA-256 for SHA-256 what `tarfile` and `json` write for the same samples (R26)."""
    root, samples = planned
    tars = convert_all(root)
    for number, stem in enumerate(sorted(tars)):
        expected = reference_tar(samples[8 * number : 8 * number + 8])
        assert sha256(tars[stem]) == sha256(expected)
        assert len(tars[stem]) % 10_240 == 0
        receipt = json.loads((root / f"index/{stem}.json").read_text())
        assert receipt["sha256"] == sha256(expected) and receipt["bytes"] == len(expected)


def test_a_tar_ends_on_a_record_for_every_size(tmp_path):
    """Padding: sizes around block and record boundaries, an empty JSON, the empty tar."""
    uids = [f"{number:032x}" for number in range(30)]
    sizes = [0, 1, 511, 512, 513, 1023, 1024, 10_240 - 2048, 10_240 - 2047, 20_480]
    for count in (0, 1, 2, 3, 5, 10):
        members = [(uids[n], bytes([n]) * sizes[n % 10], b"{}" * n) for n in range(count)]
        with TarWriter(tmp_path / "x.tar") as writer:
            for member in members:
                writer.add(*member)
            digest = writer.finish()
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for uid, image, conversation in members:
                for name, data in ((f"{uid}.image.jpg", image), (f"{uid}.conversation.json", conversation)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        assert (tmp_path / "x.tar").read_bytes() == stream.getvalue()
        assert digest == sha256(stream.getvalue()) and writer.size == len(stream.getvalue())


def test_the_header_template_equals_the_standard_library():
    """For sizes of every number of octal digits and random uids."""
    rng = random.Random(3)
    for suffix in (".image.jpg", ".conversation.json"):
        template = HeaderTemplate(suffix)
        for size in [0, 7, 8, 8**11 - 1, *(rng.randrange(8**digits) for digits in range(1, 12))]:
            uid = f"{rng.getrandbits(128):032x}"
            info = tarfile.TarInfo(uid + suffix)
            info.size = size
            assert template.header(uid.encode(), size) == info.tobuf(tarfile.GNU_FORMAT)


def test_names_that_readers_split_differently_are_never_written(tmp_path):
    """R23: dots, slashes, other lengths, other alphabets stop the writer; a bug, not a bad file."""
    for uid in ("a.b", "a" * 31, "a" * 33, "é" * 32, ""):
        with TarWriter(tmp_path / "x.tar") as writer, pytest.raises((ValueError, UnicodeEncodeError)):
            writer.add(uid, b"", b"")


def test_other_surroundings_give_the_same_bytes(planned, tmp_path):
    """R26: umask, time zone, locale, user name, two jobs at a time; 8 jobs in test_dataset_rules.py."""
    root, samples = planned
    expected = sha256(reference_tar(samples[:8]))
    surroundings = [
        {"TZ": "Asia/Tokyo", "LC_ALL": "C", "USER": "someone"},
        {"TZ": "America/Lima", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"},
    ]

    def convert(number: int) -> str:
        args = [
            arg.replace(str(root / "energon"), str(tmp_path / str(number)))
            for arg in convert_args(root, "train-000000")
        ]
        args = [arg.replace(str(root / "index"), str(tmp_path / f"index{number}")) for arg in args]
        run_program("convert_tar", *args, **surroundings[number])
        return sha256((tmp_path / f"{number}/train-shard-000000.tar").read_bytes())

    before = os.umask(0o077)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(convert, range(2))) == [expected] * 2
    finally:
        os.umask(before)


def test_the_order_of_the_raw_tar_does_not_matter(tmp_path):
    """S08, issue point 1: thread order, another thread order and key order give one result."""
    digests = []
    for name, options in (("a", {"seed": 0}), ("b", {"order": "key"})):
        audited_shards(tmp_path / name, [25], **options)
        select(tmp_path / name, 1, 25, (3, 0))
        digests.append({stem: sha256(data) for stem, data in convert_all(tmp_path / name).items()})
    assert digests[0] == digests[1]


def test_odd_text_arrives_as_it_was(tmp_path):
    """S16: quotes, control characters, other scripts, a lone surrogate in the URL, missing fields."""
    samples, _ = make_rows(0, 5, photos=TINY_PHOTOS)
    captions = [
        'a "quoted" \\ caption',
        "line\nbreak\ttab \x7f",
        "日本語 🌍 עברית",
        "\u2028 \u202e",
        "x" * 5000,
    ]
    for sample, caption in zip(samples, captions, strict=True):
        sample.metadata["caption"] = caption
    odd = {"url": "http://images.example.invalid/\ud800.jpg"}
    samples[0].json = json.dumps(samples[0].metadata | odd, indent=4).encode()
    for name in ("sha256", "original_width", "url"):
        del samples[1].metadata[name]
    samples[2].metadata["face_bboxes"] = [[0.0, 0.0, 0.5, 0.5]] * 3
    write_shard(tmp_path / "raw", 0, samples)
    write_audit(tmp_path / "audit", 0, audit_rows(tmp_path / "raw/00000000.tar"))
    write_totals(tmp_path / "audit")
    select(tmp_path, 1, 5, (1, 0))
    data = convert_all(tmp_path)["train-000000"]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        written = [archive.extractfile(m).read() for m in archive if m.name.endswith(".json")]
    assert written[1:] == [reference_conversation(sample.metadata) for sample in samples[1:]]
    examples = [json.loads(conversation) for conversation in written]
    answers = [example["conversation"][1]["content"][0]["text"] for example in examples]
    assert answers == captions
    assert examples[0]["source"] == json.loads(reference_conversation(samples[0].metadata))["source"] | odd
    assert examples[1]["source"]["original_download_sha256"] is None
    assert examples[1]["source"]["original_width"] is None
    assert examples[2]["source"]["face_bbox_count"] == 3


def test_the_conversation_has_the_described_fields_in_order():
    metadata = make_rows(3, 1, photos=TINY_PHOTOS)[0][0].metadata
    made = ConversationMaker(REPO, REVISION, PROMPT).make(metadata)
    assert made == reference_conversation(metadata)
    assert made.startswith(b'{"conversation":[{"role":"user","content":[{"type":"image"},{"type":"text",')
    source = json.loads(made)["source"]
    assert " ".join(source) == (
        "dataset revision uid url source_key download_status original_download_sha256 face_bbox_count "
        "width height original_width original_height"
    )


@pytest.mark.parametrize("value", [True, 1.5, -3, "a %s", None, [], {"é": ["日 \ud800", [1]]}, 10**30])
def test_any_value_of_the_metadata_arrives(value):
    """The bytes of `json.dumps`, and those of a prompt with quotes, percent signs and names of fields."""
    prompt = 'is "uid": %s 100 % of it? {x} \\ é'
    metadata = make_rows(3, 1, photos=TINY_PHOTOS)[0][0].metadata
    metadata |= dict.fromkeys(("url", "width", "original_height", "sha256"), value)
    made = ConversationMaker(REPO, REVISION, prompt).make(metadata)
    assert made == reference_conversation(metadata, prompt)
    assert json.loads(made)["conversation"][0]["content"][1]["text"] == prompt


def test_metadata_that_json_cannot_hold_is_refused():
    metadata = make_rows(3, 1, photos=TINY_PHOTOS)[0][0].metadata | {"width": float("nan")}
    with pytest.raises(ValueError, match="JSON"):
        ConversationMaker(REPO, REVISION, PROMPT).make(metadata)


def test_other_readers_see_every_sample(planned):
    """R23, R25: the webdataset reader groups the members as we wrote them."""
    root, samples = planned
    convert_all(root)
    tars = [str(path) for path in sorted((root / "energon").glob("*.tar"))]
    seen = list(webdataset.WebDataset(tars, shardshuffle=False))
    assert [item["__key__"] for item in seen] == [sample.metadata["uid"] for sample in samples]
    assert all({"image.jpg", "conversation.json"} <= set(item) for item in seen)
    assert [item["image.jpg"] for item in seen] == [sample.jpg for sample in samples]


def test_the_tar_index_says_where_each_sample_starts(planned):
    root, _ = planned
    convert_all(root)
    with tarfile.open(root / "energon/train-shard-000001.tar") as archive:
        members = archive.getmembers()
    starts = [member.offset for member in members[::2]]
    end = members[-1].offset_data + padded(members[-1].size)
    index = (root / "energon/train-shard-000001.tar.idx").read_bytes()
    assert index == tar_index([*starts, end])


def test_a_missing_raw_shard_names_the_way_back(planned, tmp_path):
    root, _ = planned
    args = convert_args(root, plan_stems(root)[0])
    args[args.index("--raw") + 1] = str(tmp_path)
    done = run_program("convert_tar", *args, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert f"run `snakemake {tmp_path}/00000000.tar` to download it again" in done.stdout


@pytest.mark.parametrize("fault", ["picture", "metadata", "cut"])
def test_a_raw_shard_that_changed_after_its_audit_is_found(tmp_path, fault):
    """Bit rot, an edit, a truncation: one flipped byte stops the job and leaves no tar behind."""
    audited_shards(tmp_path, [12])
    select(tmp_path, 1, 12, (2, 0))
    row = pq.read_table(tmp_path / "plan/train-000000.parquet").to_pylist()[4]
    raw = tmp_path / "raw/00000000.tar"
    data = bytearray(raw.read_bytes())
    if fault == "cut":
        del data[row["json_offset"] + 10 :]
    else:
        data[row["jpg_offset" if fault == "picture" else "json_offset"] + 5] ^= 1
    raw.write_bytes(data)
    with pytest.raises(BuildError, match="the shard changed after its audit"):
        convert_all(tmp_path)
    assert not list((tmp_path / "energon").glob("*")) and not (tmp_path / "index").exists()


def test_a_disk_that_fails_while_it_is_synced_stops_the_job(planned, tmp_path, monkeypatch):
    """A sync in the background may be the only one that is told of lost bytes."""

    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_writer, "SYNC_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", fail)
    root, _ = planned
    outputs = Outputs(tmp_path / "x.tar", tmp_path / "x.parquet", tmp_path / "x.json")
    with pytest.raises(OSError, match="Input/output error"):
        convert(
            root / "plan/train-000000.parquet",
            root / "raw",
            ConversationMaker(REPO, REVISION, PROMPT),
            outputs,
        )
    assert not list(tmp_path.iterdir())


def test_a_killed_conversion_leaves_nothing_that_stays(planned):
    """A scratch file of an earlier, killed job is cleared by the next writer of the same tar."""
    root, _ = planned
    (root / "energon").mkdir(exist_ok=True)
    stale = root / "energon/.train-shard-000000.tar.abc.part"
    stale.write_bytes(b"half a tar")
    convert_all(root)
    assert not stale.exists() and not list(root.rglob("*.part"))
