"""One shard through the real program: what is published, and that nothing half-made ever is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from download_helpers import (
    agrees,
    download,
    only_the_triple,
    outcomes,
    pages,
    photo,
    samples,
    stats,
    uid_of,
)
from helpers import child_env
from image_server import ImageServer, body
from shardwright.download.rows import clean_rows, read_rows, write_table
from shardwright.download.triple import Triple, find_disagreement
from shardwright.errors import BuildError
from shardwright.metadata import parse_columns

CAPTIONS = ["plain", None, "nul\x00 and <|im_end|>", "word " * 40_000, " ", "emoji \U0001f600\r\n"]
BOXES = [
    None,
    [],
    [[0.9, 0.9, 0.1, 0.1]],
    [[10.0, 20.0, 60.0, 90.0]],
    [[0.1, float("nan"), 0.2, 0.3]],
    [[0.1, 0.2]],
]


def test_a_shard_from_start_to_end(tmp_path):
    """R17, R16, S05, S06: captions and boxes as one rule says, failures by name, nothing else in raw/."""
    with ImageServer(pages(6)) as server:
        urls = [server.url(f"/{n}.jpg") for n in range(6)]
        urls += [server.url("/gone.jpg"), None, "ftp://host/a.jpg"]
        done = download(
            tmp_path, urls, text=[*CAPTIONS, "a", "b", "c"], face_bboxes=[*BOXES, [], [], []], max_pixels=6144
        )
    agrees(tmp_path, 9)
    only_the_triple(tmp_path)
    kept = samples(tmp_path / "raw/00000000.tar")
    assert sorted(kept) == ["0000000000", "0000000001", "0000000002"]
    for number, sample in ((int(key), sample) for key, sample in kept.items()):
        assert list(sample) == ["jpg", "json", "txt"]
        meta = sample["json"]
        assert sample["txt"].decode() == meta["caption"] and meta["uid"] == uid_of(number)
        assert meta["key"] == f"{number:010d}" and meta["status"] == "success"
        assert list(meta)[:5] == ["uid", "face_bboxes", "caption", "url", "key"]
        assert (meta["width"], meta["height"]) == (96, 64)
    assert [kept[key]["json"]["caption"] for key in sorted(kept)] == ["plain", "", "nul  and < |im_end|>"]
    assert [kept[key]["json"]["face_bboxes"] for key in sorted(kept)] == [[], [], [[0.1, 0.1, 0.9, 0.9]]]
    by_key = outcomes(tmp_path)
    assert by_key["0000000003"] == (
        "failed_to_resize",
        "bad_face_boxes: a box in pixels, not in fractions of the picture",
    )
    assert by_key["0000000006"] == ("failed_to_download", "http_4xx: 404 Not Found")
    assert by_key["0000000007"][1].startswith("bad_url: ")
    found = stats(tmp_path)
    assert (found["count"], found["successes"]) == (9, 3)
    assert (found["failed_to_download"], found["failed_to_resize"]) == (3, 3)
    assert found["failure_classes"] == {"http_4xx": 1, "bad_url": 2, "bad_face_boxes": 3}
    assert found["cleaned"] == {
        "boxes_null": 1, "boxes_refused": 3, "boxes_repaired": 1, "captions_cleaned": 3, "captions_null": 1,
    }  # fmt: skip
    assert found["provenance"]["img2dataset"] and "Firefox" in found["provenance"]["user_agent"]
    assert found["pictures"] == {"faces_hidden": 1}
    assert "00000000: 3 of 9 pictures (33.3 %)" in done.stdout and "bad_face_boxes" in done.stdout


OFFICIAL = """
import sys, types
sys.modules["torch"] = None
sys.modules["wandb"] = types.ModuleType("wandb")
import os; os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
from img2dataset.downloader import Downloader
from img2dataset.resizer import Resizer
from img2dataset.blurrer import BoundingBoxBlurrer
from img2dataset.writer import WebDatasetSampleWriter
folder, table = sys.argv[1:]
Downloader(
    sample_writer_class=WebDatasetSampleWriter,
    resizer=Resizer(512, "keep_ratio_largest", True, encode_quality=95, blurrer=BoundingBoxBlurrer()),
    thread_count=8, save_caption=True, extract_exif=True, output_folder=folder,
    column_list=["uid", "face_bboxes", "caption", "url"], timeout=10, number_sample_per_shard=100,
    oom_shard_count=8, compute_hash="sha256", verify_hash_type=None, encode_format="jpg", retries=2,
    user_agent_token=None, disallowed_header_directives=["noai", "noindex"], blurring_bbox_col="face_bboxes",
).download_shard((0, table))
"""


def test_ordinary_pictures_are_the_official_flows_to_the_byte(tmp_path):
    """JPEG, TXT and every field of the JSON, against img2dataset's own Downloader and Resizer."""
    kinds = {
        f"/{n}.jpg": body(photo(n, width, height, suffix, **options))
        for n, (width, height, suffix, options) in enumerate(
            [
                (96, 64, "JPEG", {}),
                (640, 480, "JPEG", {"quality": 90}),
                (1200, 900, "JPEG", {"progressive": True}),
                (900, 1300, "JPEG", {"subsampling": 0}),
                (513, 700, "PNG", {}),
                (300, 200, "PNG", {}),
                (1025, 33, "JPEG", {}),
                (640, 640, "WEBP", {}),
                (700, 500, "BMP", {}),
            ]
        )
    }
    with ImageServer(kinds) as server:
        urls = [server.url(path) for path in sorted(kinds)]
        download(tmp_path, urls)
        table, _ = clean_rows(read_rows(tmp_path / "metadata/urls.parquet", 0, len(urls), COLUMNS))
        write_table(table, tmp_path / "rows.arrow")
        (tmp_path / "official").mkdir()
        subprocess.run(
            [sys.executable, "-c", OFFICIAL, str(tmp_path / "official"), str(tmp_path / "rows.arrow")],
            check=True,
            env=child_env(no_proxy="*"),
        )
    ours, theirs = samples(tmp_path / "raw/00000000.tar"), samples(tmp_path / "official/00000000.tar")
    assert len(theirs) == len(kinds) and ours.keys() == theirs.keys()
    for key, sample in ours.items():
        assert sample["jpg"] == theirs[key]["jpg"] and sample["txt"] == theirs[key]["txt"]
        assert sample["json"].pop("adjustments") == []
        assert sample["json"] == theirs[key]["json"]
        assert list(sample["json"]) == list(theirs[key]["json"])


COLUMNS = parse_columns("url=url text=text uid=uid face_bboxes=face_bboxes")


@pytest.fixture(scope="module")
def shard_of_three(tmp_path_factory):
    """A finished shard of three pictures; its folder raw/."""
    root = tmp_path_factory.mktemp("three")
    with ImageServer(pages(3)) as server:
        download(root, [server.url(f"/{n}.jpg") for n in range(3)])
    return root / "raw"


def test_the_tar_has_no_clock_and_no_pax_headers(shard_of_three):
    with tarfile.open(shard_of_three / "00000000.tar") as archive:
        assert {(member.mtime, bool(member.pax_headers)) for member in archive} == {(0, False)}


# Triples that do not agree


def test_what_does_not_agree_is_found(tmp_path, shard_of_three):
    """R10, S04, S07: never its exit code, never its word."""
    shutil.copytree(shard_of_three, tmp_path / "raw")
    triple = Triple.inside(tmp_path / "raw", "00000000")
    with tarfile.open(triple.tar) as archive:
        second = archive.getmembers()[1].offset
    keys = [f"{n:010d}" for n in range(3)]
    tar, parquet, told = triple.tar.read_bytes(), triple.parquet.read_bytes(), triple.stats.read_text()

    def problem(**files) -> str:
        triple.tar.write_bytes(files.get("tar", tar))
        triple.parquet.write_bytes(files.get("parquet", parquet))
        triple.stats.write_text(files.get("stats", told))
        return find_disagreement(triple, keys) or "none"

    assert problem() == "none"
    assert find_disagreement(triple, [*keys, "0000000003"]) == (
        "00000000.parquet: found 3 rows; expected 4, as the plan says"
    )
    assert "the keys of other rows" in find_disagreement(triple, ["0000000003", *keys[:2]])
    assert "the tar is truncated" in problem(tar=tar[: len(tar) // 2])
    assert "the tar is truncated" in problem(tar=tar[:-10240])
    assert "json as first member" in problem(tar=tar[second:])
    assert "with checksum" in problem(tar=tar[:second] + b"x" + tar[second + 1 :])
    assert "found Parquet magic bytes not found" in problem(parquet=parquet[:-100])
    found = "found 2 successes; expected 3, as 00000000.parquet has"
    assert found in problem(stats=told.replace('"successes": 3', '"successes": 2'))
    assert "JSONDecodeError" in problem(stats="{")


# Rows


def test_rows_are_read_across_row_groups(tmp_path):
    table = pa.table({"url": [str(n) for n in range(100)], "text": ["t"] * 100, "uid": ["u"] * 100})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    columns = parse_columns("url=url text=text uid=uid")
    found = read_rows(tmp_path / "a.parquet", 20, 55, columns)["url"].to_pylist()
    assert found == [str(n) for n in range(20, 55)]
    with pytest.raises(BuildError, match="found 100 rows; expected at least 101"):
        read_rows(tmp_path / "a.parquet", 90, 101, columns)


def test_a_column_of_lists_is_refused_before_anything_is_fetched(tmp_path):
    """R17: a list-valued caption crashes a truth test elsewhere."""
    table = pa.table({"url": ["x"], "text": [["a", "b"]], "uid": ["u"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BuildError, match="column text of type list"):
        read_rows(tmp_path / "a.parquet", 0, 1, parse_columns("url=url text=text uid=uid"))
    with pytest.raises(BuildError, match="no column nothing"):
        read_rows(tmp_path / "a.parquet", 0, 1, parse_columns("url=url text=nothing uid=uid"))


READ_PROGRAM = """
import re, sys
from pathlib import Path
from shardwright.download.rows import read_rows
from shardwright.metadata import parse_columns
columns = parse_columns("url=url text=text uid=uid face_bboxes=face_bboxes")
print(read_rows(Path(sys.argv[1]), 1_990_000, 2_000_000, columns).num_rows)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) // 1024)
"""


def test_a_shard_of_two_million_rows_is_read_without_the_rest(tmp_path):
    """R07: one row group, as DataComp's files are; the last shard of it."""
    count = 2_000_000
    numbers = pa.array(range(count)).cast(pa.string())
    empty = pa.ListArray.from_arrays(
        pa.array([0] * (count + 1), pa.int32()), pa.array([], pa.list_(pa.float64()))
    )
    table = pa.table({"url": numbers, "text": numbers, "uid": numbers, "face_bboxes": empty})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=count, compression="snappy")
    done = subprocess.run(
        [sys.executable, "-c", READ_PROGRAM, str(tmp_path / "big.parquet")],
        capture_output=True, text=True, check=True, env=child_env(PYTHONPATH=":".join(sys.path)),
    )  # fmt: skip
    rows, peak_mb = map(int, done.stdout.split())
    assert rows == 10_000 and peak_mb < 400


def test_invalid_utf_8_in_the_metadata_is_replaced_not_fatal(tmp_path):
    """S16."""
    broken = pa.array([b"caf\xe9", b"nul\x00"]).view(pa.string())
    table = pa.table({"url": broken, "text": broken, "uid": ["u", "v"]})
    cleaned, counts = clean_rows(table)
    assert cleaned["caption"].to_pylist() == ["caf\ufffd", "nul "]
    assert cleaned["url"].to_pylist() == ["caf\ufffd", "nul\x00"] and counts["captions_cleaned"] == 2
