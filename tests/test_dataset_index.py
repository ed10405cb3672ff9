"""index_dataset, write_manifest: Energon's metadata, equal to its own and readable by it alone."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import index_dataset
import write_manifest
from dataset_helpers import PROMPT, REPO, REVISION, build, convert_all, index, reference_conversation
from shardwright import deadline as deadline_module
from shardwright.convert import MEMBERS_SCHEMA
from shardwright.errors import BuildError
from shardwright.files import sha256_file

TABLES = {
    "samples": "tar_file_id, sample_key, sample_index, byte_offset, byte_size",
    "sample_parts": "tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of 61 samples in several tars of two splits; the samples in order."""
    root = tmp_path_factory.mktemp("dataset")
    samples = build(root, [31, 30], (6, 1), validation_fraction=0.1, per_tar=10)
    return root, samples


@pytest.fixture
def copy(dataset, tmp_path):
    """A copy of the dataset that a test may damage."""
    return shutil.copytree(dataset[0], tmp_path / "copy")


def dump(path: Path) -> dict[str, list]:
    """The rows of Energon's database in order, its tables, and its indexes."""
    with sqlite3.connect(path) as database:
        rows = {
            table: database.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 3, 4").fetchall()
            for table, columns in TABLES.items()
        }
        rows["schema"] = sorted(
            (name, " ".join((sql or "").split()))
            for name, sql in database.execute("SELECT name, sql FROM sqlite_master")
        )
    return rows


def energon_prepare(folder: Path) -> None:
    """Energon's own preparation of the tars in `folder`."""
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    names = sorted(path.name for path in folder.glob("*.tar"))
    patterns = [("train", "train-shard-.*"), ("val", "val-shard-.*")]
    WebdatasetPreparator.prepare_dataset(folder, names, split_parts_patterns=patterns, workers=1)


def test_the_metadata_equals_energons_own(dataset, tmp_path):
    """S11, R29: what we merge from each tar's job is what Energon finds by reading the tars itself."""
    root, _ = dataset
    tmp_path.joinpath("own").mkdir()
    for tar in (root / "energon").glob("*.tar"):
        shutil.copy(tar, tmp_path / "own")
    energon_prepare(tmp_path / "own")
    ours, theirs = root / "energon/.nv-meta", tmp_path / "own/.nv-meta"
    assert dump(ours / "index.sqlite") == dump(theirs / "index.sqlite")
    assert json.loads((ours / ".info.json").read_text()) == json.loads((theirs / ".info.json").read_text())
    assert yaml.safe_load((ours / "split.yaml").read_text()) == yaml.safe_load(
        (theirs / "split.yaml").read_text()
    )
    indexes = sorted((root / "energon").glob("*.tar.idx"))
    assert len(indexes) == 7
    for path in indexes:
        assert path.read_bytes() == (tmp_path / "own" / path.name).read_bytes()


def test_the_metadata_is_the_same_at_every_build(dataset, copy):
    """S11: no random id, no arrival order; even the database's bytes are equal."""
    shutil.rmtree(copy / "energon/.nv-meta")
    again = index(copy, threads=2)
    assert again == json.loads((dataset[0] / "index/index.json").read_text())


def test_energon_alone_reads_every_sample(dataset):
    """Through shardwright.yaml: each uid once, in both splits, bytes as they are in the tars (R31)."""
    from dataset_reader import read_all

    root, samples = dataset
    by_uid = {sample.metadata["uid"]: sample for sample in samples}
    read = {split: read_all(root / "energon", split) for split in ("train", "val")}
    keys = [item.__key__.rpartition("/")[2] for items in read.values() for item in items]
    assert sorted(keys) == sorted(by_uid)
    splits = json.loads((root / "plan/summary.json").read_text())["splits"]
    assert {split: len(items) for split, items in read.items()} == {
        split: counts["samples"] for split, counts in splits.items()
    }
    for item in read["val"]:
        sample = by_uid[item.__key__]
        assert item.image == sample.jpg
        assert item.conversation == reference_conversation(sample.metadata)


def test_random_access_finds_each_part(dataset):
    """By key through Energon's database reader, then by offset in the tar it names."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.indexing import SqliteIndexReader
    from megatron.energon.flavors.webdataset.metadata import get_info_shard_files

    root, samples = dataset
    folder = EPath(root / "energon")
    names = get_info_shard_files(folder)
    with SqliteIndexReader(folder / ".nv-meta/index.sqlite") as reader:
        assert reader.get_sample_count() == len(samples)
        for sample in samples[::7]:
            for part, data in (
                ("image.jpg", sample.jpg),
                ("conversation.json", reference_conversation(sample.metadata)),
            ):
                at = reader.get_sample_part(sample.metadata["uid"], part)
                tar = (root / "energon" / names[at.tar_file_id]).read_bytes()
                assert tar[at.raw_byte_offset : at.raw_byte_offset + at.raw_byte_size] == data


def test_the_bridge_declaration_names_members_that_exist(dataset):
    """Megatron-Bridge is not installed here: its field map is held against the tars' members."""
    root, _ = dataset
    declared = yaml.safe_load((root / "energon/.nv-meta/dataset.yaml").read_text())
    assert declared == {
        "__module__": "megatron.bridge.data.energon.task_encoder_utils",
        "__class__": "ChatMLWebdataset",
        "field_map": {"imgs": "image.jpg", "conversation": "conversation.json"},
        "subflavors": {},
    }
    parts: dict[str, set[str]] = {}
    for tar in (root / "energon").glob("*.tar"):
        with tarfile.open(tar) as archive:
            for name in archive.getnames():
                key, _, part = name.partition(".")
                parts.setdefault(key, set()).add(part)
    assert all(found == set(declared["field_map"].values()) for found in parts.values())


def test_readers_share_a_read_only_dataset(copy):
    """R30: no lock, no journal, nothing written beside the data while several readers have it open."""
    from dataset_reader import read_all

    for folder in (copy / "energon/.nv-meta", copy / "energon"):
        for path in folder.iterdir():
            path.chmod(0o555 if path.is_dir() else 0o444)
        folder.chmod(0o555)
    before = sorted(path.name for path in (copy / "energon/.nv-meta").iterdir())
    assert len(read_all(copy / "energon", "train")) == len(read_all(copy / "energon", "train")) > 0
    assert sorted(path.name for path in (copy / "energon/.nv-meta").iterdir()) == before
    for folder in (copy / "energon", copy / "energon/.nv-meta"):
        folder.chmod(0o755)


def test_no_val_split_is_declared_for_a_fraction_of_zero(tmp_path):
    """R31: a split without samples is not there, instead of empty."""
    build(tmp_path, [12], (2, 0))
    split = yaml.safe_load((tmp_path / "energon/.nv-meta/split.yaml").read_text())
    assert list(split["split_parts"]) == ["train"]


def header_overwritten(root: Path) -> None:
    """One damaged header: Energon's own preparation would index the samples before it, and no more."""
    with (root / "energon/train-shard-000001.tar").open("r+b") as stream:
        stream.seek(512 * 4)
        stream.write(b"\xff" * 512)


def cut_in_half(root: Path) -> None:
    """A truncated tar: Energon's own preparation fails with an assertion about an empty shard."""
    tar = root / "energon/train-shard-000001.tar"
    os.truncate(tar, tar.stat().st_size // 2)


def index_of_another_tar(root: Path) -> None:
    """The right number of offsets, but not those of this tar."""
    path = root / "energon/train-shard-000001.tar.idx"
    path.write_bytes(path.read_bytes()[::-1])


def plan_of_another_tar(root: Path) -> None:
    """A tar that was written from another plan."""
    receipt = json.loads((root / "index/train-000001.json").read_text())
    (root / "index/train-000001.json").write_text(json.dumps(receipt | {"samples": 9}))


def tar_of_a_larger_build(root: Path) -> None:
    """A tar that an earlier, larger build left behind."""
    shutil.copy(root / "energon/train-shard-000001.tar", root / "energon/train-shard-000099.tar")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (header_overwritten, r"train-shard-000001\.tar: found .* Next: delete it"),
        (cut_in_half, r"train-shard-000001\.tar: found \d+ bytes"),
        (index_of_another_tar, r"train-shard-000001\.tar\.idx: found other offsets"),
        (plan_of_another_tar, r"found samples 9; expected 10, as planned"),
        (tar_of_a_larger_build, r"remove them: rm .*train-shard-000099\.tar$"),
    ],
)
def test_a_tar_that_is_not_what_was_written_is_an_error(copy, damage, message):
    """S13: Energon skips what it cannot read; here only what its job wrote is indexed."""
    damage(copy)
    with pytest.raises(BuildError, match=message):
        index(copy)


def test_the_deadline_ends_a_hanging_index(tmp_path):
    """R28: an index that does not come back ends with a line, not at the end of a reservation."""
    with pytest.raises(BuildError, match="no end after 0 s"), deadline_module.deadline(0.05, "indexing"):
        time.sleep(5)
    with deadline_module.deadline(5, "indexing"):
        pass


def test_two_hundred_tars_are_indexed_in_seconds(tmp_path):
    """R28: many tars of a few samples, no pool of processes, stdin untouched, within a deadline."""
    build(tmp_path, [400], (200, 0), per_tar=2)
    counts = json.loads((tmp_path / "energon/.nv-meta/.info.json").read_text())["shard_counts"]
    assert counts == {f"train-shard-{number:06d}.tar": 2 for number in range(200)}


def test_many_rows_are_merged_in_bounded_time(tmp_path):
    """R29: 100,000 samples of 10 tars; a million take 10 times this (see tests/bench/dataset.py)."""
    from shardwright.energon_index import write_sqlite

    rows, paths = 10_000, []
    for tar in range(10):
        uids = [f"{hash((tar, row)) & (2**128 - 1):032x}" for row in range(rows)]
        columns = [uids, [row * 40_960 for row in range(rows)], [38_000] * rows, [900] * rows]
        paths.append(tmp_path / f"{tar}.parquet")
        pq.write_table(pa.table(columns, schema=MEMBERS_SCHEMA), paths[-1])
    started = time.process_time()
    write_sqlite(paths, 100_000, tmp_path / "meta/index.sqlite")
    assert time.process_time() - started < 30
    with sqlite3.connect(tmp_path / "meta/index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM samples").fetchone() == (100_000,)
        assert database.execute("SELECT count(*) FROM sample_parts").fetchone() == (200_000,)


def test_a_full_temporary_disk_is_named_before_the_work(dataset, tmp_path):
    from shardwright.energon_index import write_sqlite

    with pytest.raises(BuildError, match="set TMPDIR"):
        write_sqlite([], 10**15, tmp_path / "index.sqlite")


def manifest(root: Path, prompt: str = PROMPT) -> dict:
    """Run write_manifest on `root` with a small audit summary; return the manifest."""
    summary = {"gates": [{"name": "usable", "passed": True}], "urls": 90, "downloaded": 61}
    (root / "audit/summary.json").write_text(json.dumps(summary))
    (root / "metadata.json").write_text(
        json.dumps({"file": "a.parquet", "rows": 61, "bytes": 9, "sha256": "0" * 64, "repo": "x"})
    )
    write_manifest.main(
        [
            *("--metadata", str(root / "metadata.json"), "--audit", str(root / "audit/summary.json")),
            *("--plan", str(root / "plan/summary.json"), "--index", str(root / "index/index.json")),
            *("--repo", REPO, "--revision", REVISION, "--prompt", prompt),
            *("--validation-fraction", "0.1", "--manifest", str(root / "energon/manifest.json")),
        ]
    )
    return json.loads((root / "energon/manifest.json").read_text())


def test_the_manifest_accounts_for_everything(copy):
    found = manifest(copy)
    tars = sorted((copy / "energon").glob("*.tar"))
    assert [tar["name"] for tar in found["tars"]] == [path.name for path in tars]
    for tar, path in zip(found["tars"], tars, strict=True):
        assert tar["sha256"] == sha256_file(path) and tar["bytes"] == path.stat().st_size
        assert tar["split"] == path.name.partition("-")[0]
    counts = found["counts"]
    assert sum(tar["samples"] for tar in found["tars"]) == counts["kept"] == 61
    assert counts["kept"] + sum(counts["dropped"].values()) == counts["read"]
    assert found["source"] == {
        "repo": REPO,
        "revision": REVISION,
        "files": [{"file": "a.parquet", "rows": 61, "bytes": 9, "sha256": "0" * 64}],
    }
    assert found["gates"] == [{"name": "usable", "passed": True}]
    assert {"objective", "prompt", "target", "loss_mask", "split_rule", "order"} <= set(found["adaptation"])


@pytest.mark.parametrize("name", index_dataset.META_FILES)
def test_a_missing_or_altered_file_of_the_metadata_is_found(copy, name):
    """R32: each file of .nv-meta, changed by a byte, then gone."""
    path = copy / "energon/.nv-meta" / name
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(BuildError, match=r"as index_dataset wrote it\. Next: delete it"):
        manifest(copy)
    path.unlink()
    with pytest.raises(BuildError, match="no such file"):
        manifest(copy)
    index(copy)
    assert len(manifest(copy)["tars"]) == 7


def test_counts_that_do_not_add_up_are_refused(copy):
    plan = json.loads((copy / "plan/summary.json").read_text())
    plan["dropped"]["bad_jpeg"] += 1
    (copy / "plan/summary.json").write_text(json.dumps(plan))
    with pytest.raises(BuildError, match=r"downloaded = read = kept \+ dropped"):
        manifest(copy)


def test_one_sample_is_a_dataset(tmp_path):
    """R31: the smallest set there is."""
    from dataset_reader import read_all

    samples = build(tmp_path, [1], (1, 0))
    assert [item.image for item in read_all(tmp_path / "energon", "train")] == [samples[0].jpg]


def test_an_edited_prompt_changes_the_tar_and_the_id_of_the_index(copy):
    """A tar of another prompt does not pass for one of this build, even if Snakemake forgot its params."""
    before = (copy / "energon/.nv-meta/index.uuid").read_text()
    convert_all(copy, prompt="What is this?")
    index(copy)
    assert (copy / "energon/.nv-meta/index.uuid").read_text() != before
    with pytest.raises(BuildError, match=r"train-shard-000000\.tar: found .*What is this"):
        manifest(copy)
    assert manifest(copy, prompt="What is this?")["adaptation"]["prompt"] == "What is this?"
