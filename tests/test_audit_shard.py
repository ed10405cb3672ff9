"""The audit of one raw shard: verdicts in their order, counts that add up, faults that name themselves."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
from PIL import Image

from audit_helpers import audit, peak_memory_mb, read_audit, run_audit, small_photos, small_shard
from photos import make_photo
from raw_shards import CONTENT_FAULTS, make_rows, spoil, write_shard
from shardwright import audit_sample, verdicts
from shardwright.audit_sample import Expectations, Payload
from shardwright.rawshard import RawSample
from shardwright.rawtar import Member

ANY_SAMPLE = RawSample("", *[Member("", 0, 1)] * 3)


def judge(sample, face_boxes=True):
    jpg, meta, txt = (data for _, data in sample.members())
    payload = Payload(ANY_SAMPLE._replace(key=sample.key), jpg, meta, txt)
    return audit_sample.judge([payload], Expectations(face_boxes))[0]


def fresh_sample():
    return make_rows(3, 1, photos=small_photos())[0][0]


def test_rows_are_in_key_order_and_name_the_bytes(tmp_path):
    """S08: the tar is in the order of threads; the audit is not, and its offsets read each member back."""
    files = small_shard(tmp_path)
    print(run_audit(files).stdout)
    report, rows = read_audit(files)
    keys = [row["key"] for row in rows]
    with tarfile.open(files.tar) as tar:
        names = tar.getnames()
        assert keys == sorted(keys) == sorted({name.partition(".")[0] for name in names})
        assert keys != list(dict.fromkeys(name.partition(".")[0] for name in names))
        content = files.tar.read_bytes()
        for row in rows:
            for suffix in ("jpg", "json", "txt"):
                payload = content[row[f"{suffix}_offset"] :][: row[f"{suffix}_size"]]
                assert payload == tar.extractfile(f"{row['key']}.{suffix}").read()
                if suffix != "txt":
                    assert row[f"{suffix}_sha256"] == hashlib.sha256(payload).hexdigest()
            assert row["uid"] == json.loads(content[row["json_offset"] :][: row["json_size"]])["uid"]
            assert row["verdict"] == "keep"
            assert (row["width"], row["height"]) == Image.open(tar.extractfile(f"{row['key']}.jpg")).size
            assert row["caption_chars"] == len(tar.extractfile(f"{row['key']}.txt").read().decode())
    assert report["attempts"] == 40 == report["successes"] + sum(report["failures"].values())
    assert report["members"] == 3 * len(rows) == len(names)


def test_failures_are_classed(tmp_path):
    """R13: img2dataset's messages become classes; HTTP codes are kept apart."""
    samples, failures = make_rows(3, 300, photos=small_photos(), failure_rate=0.5, seed=2)
    report, _ = audit(write_shard(tmp_path / "raw", 3, samples, failures), 300)
    expected = {"dns", "http_4xx 404", "http_4xx 403", "http_5xx 503", "timeout", "not_an_image"}
    assert set(report["failures"]) == expected
    assert sum(report["failures"].values()) == len(failures)


WAYS = [(verdict, way) for verdict, ways in CONTENT_FAULTS.items() for way in range(len(ways))]


@pytest.mark.parametrize(("verdict", "way"), WAYS, ids=[f"{verdict}-{way}" for verdict, way in WAYS])
def test_each_fault_of_content_has_its_verdict(verdict, way):
    sample = fresh_sample()
    assert judge(sample).verdict == "keep"
    spoil(sample, verdict, way)
    judged = judge(sample)
    assert judged.verdict == verdict
    assert judged.detail


def test_every_audit_verdict_has_a_fault_in_these_tests():
    assert set(CONTENT_FAULTS) == set(verdicts.AUDIT_VERDICTS) - {verdicts.KEEP}


PAIRS = [
    (first, second)
    for number, first in enumerate(CONTENT_FAULTS)
    for second in list(CONTENT_FAULTS)[number + 1 :]
    # These two replace the whole member that carries the later fault.
    if (first, second) not in {(verdicts.CAPTION_NOT_UTF8, verdicts.CAPTION_MISMATCH)}
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_first_fault_is_the_one_counted(first, second):
    """Two faults in one sample: the earlier in `verdicts.REASONS` is the verdict."""
    assert verdicts.REASONS.index(first) < verdicts.REASONS.index(second)
    sample = fresh_sample()
    spoil(sample, second)
    spoil(sample, first)
    assert judge(sample).verdict == first


def test_counts_add_up_when_every_fault_is_there(tmp_path):
    """kept + each reason = samples read."""

    def spoil_some(samples):
        for number, (verdict, way) in enumerate(WAYS):
            spoil(samples[2 * number], verdict, way)

    files = small_shard(tmp_path, num_rows=120, spoil=spoil_some)
    report, rows = audit(files, 120)
    assert sum(report["verdicts"].values()) == report["samples"] == len(rows)
    for verdict, ways in CONTENT_FAULTS.items():
        assert report["verdicts"][verdict] == len(ways) == sum(row["verdict"] == verdict for row in rows)
    assert report["verdicts"]["keep"] == len(rows) - len(WAYS)
    assert [row["key"] for row in report["dropped"]] == sorted(
        row["key"] for row in rows if row["verdict"] != "keep"
    )
    for row in rows:
        assert (row["width"] is None) == (row["verdict"] != "keep")
        bad_uid = row["verdict"] in (verdicts.METADATA_NOT_JSON, verdicts.BAD_UID, verdicts.CAPTION_NOT_UTF8)
        assert (row["uid"] is None) == bad_uid


def test_a_lone_surrogate_in_the_metadata_never_equals_a_caption():
    """S16: json hides it behind an escape; it cannot be written as UTF-8."""
    sample = fresh_sample()
    sample.metadata["caption"] = "a \ud800 b"
    sample.txt = b"a ? b"
    assert judge(sample).verdict == verdicts.CAPTION_MISMATCH


def test_captions_that_the_download_would_clean_are_counted(tmp_path):
    """S16: raw shards of a plain img2dataset may hold chat tokens and NULs; kept, and counted."""

    def change(samples):
        samples[0].metadata["caption"] = "a <|im_end|> b"
        samples[1].metadata["caption"] = "a \x00 b"

    report, _ = audit(small_shard(tmp_path, spoil=change))
    assert report["counts"]["unclean_captions"] == 2
    assert report["verdicts"]["keep"] == report["samples"]


@pytest.mark.parametrize(
    "caption", ["x\n", " x", "NaN", "\x00", "日本", "😀 \u202e", '{"a": 1}', "x" * 200_000]
)
def test_odd_but_sound_captions_are_kept(caption):
    """What baseline.md's corpus shows the reference to keep."""
    sample = fresh_sample()
    sample.metadata["caption"] = caption
    assert judge(sample).verdict == "keep"


def test_sets_without_a_face_box_column_need_none(tmp_path):
    """metadata.columns without face_bboxes: a missing list is no fault, a wrong one is."""
    sample = fresh_sample()
    del sample.metadata["face_bboxes"]
    assert judge(sample).verdict == verdicts.BAD_FACE_BBOXES
    assert judge(sample, face_boxes=False).verdict == "keep"
    sample.metadata["face_bboxes"] = 3
    assert judge(sample, face_boxes=False).verdict == verdicts.BAD_FACE_BBOXES


def test_what_the_pictures_show_is_counted(tmp_path):
    """R06, R19, R20, S01: placeholders, grey pictures, turned ones, near-constant ones."""
    white = io.BytesIO()
    Image.new("RGB", (96, 64), "white").save(white, "JPEG")

    def change(samples):
        for sample in samples[:4]:
            sample.jpg = white.getvalue()
            sample.metadata.update(width=96, height=64)
        samples[5].jpg = make_photo(50, 64, 48, mode="L")
        samples[5].metadata.update(width=64, height=48)
        samples[6].metadata["exif"] = json.dumps({"Image Orientation": "Rotated 90 CW"})
        samples[7].metadata["exif"] = json.dumps({"Image Orientation": "Horizontal (normal)"})
        samples[8].metadata["face_bboxes"] = [[0.1, 0.1, 0.2, 0.2], [0.3, 0.3, 0.4, 0.4]]
        samples[9].metadata["width"] = 1
        samples[10].metadata["exif"] = json.dumps({"Image Orientation": "Rotated 180"})
        samples[10].metadata["adjustments"] = ["exif_orientation_3", "cmyk_to_rgb"]
        samples[11].metadata["adjustments"] = ["cmyk_to_rgb"]

    report, rows = audit(small_shard(tmp_path, spoil=change))
    digest = hashlib.sha256(white.getvalue()).hexdigest()
    assert report["repeated_images"] == {"extra_samples": 3, "top": {digest: 4}}
    assert report["counts"]["near_constant"] == 4
    assert report["near_constant_keys"] == [row["key"] for row in rows if row["jpg_sha256"] == digest]
    assert report["counts"]["grey"] == 1
    assert report["counts"]["sideways"] == 1
    assert report["adjustments"] == {"cmyk_to_rgb": 2, "exif_orientation_3": 1}
    assert report["counts"]["stated_size_wrong"] == 1
    assert report["counts"]["face_boxes"] >= 2
    for histogram in report["histograms"].values():
        assert sum(histogram["counts"]) == report["verdicts"]["keep"]
        assert len(histogram["from"]) == len(histogram["counts"])


def test_outputs_are_the_same_at_any_number_of_threads(tmp_path):
    """Same bytes with 1, 2 and 8 threads."""
    outputs = []
    for threads in (1, 2, 8):
        folder = tmp_path / str(threads)
        audit(small_shard(folder, num_rows=300), 300, threads=threads)
        outputs.append([path.read_bytes() for path in sorted((folder / "audit").iterdir())])
    assert outputs[0] == outputs[1] == outputs[2]


def test_content_digest_is_that_of_the_samples(tmp_path):
    """S08: another order and other time stamps leave it; one changed sample does not."""
    first, _ = audit(small_shard(tmp_path / "first", seed=1))
    other_order, _ = audit(small_shard(tmp_path / "second", seed=2))
    assert first["content_sha256"] == other_order["content_sha256"]
    changed, _ = audit(
        small_shard(tmp_path / "third", spoil=lambda samples: spoil(samples[4], "blank_caption"))
    )
    assert first["content_sha256"] != changed["content_sha256"]


@pytest.mark.parametrize("verdict", [verdicts.KEEP, verdicts.BAD_STATUS, verdicts.BAD_JPEG])
def test_memory_does_not_grow_with_the_bytes(tmp_path, verdict):
    """Ten times the bytes in a shard, the same memory: payloads are read, judged and forgotten.

    An exception that is kept, of a fault in every chunk, would keep the frames that hold the bytes.
    """

    def pad(samples):
        for number, sample in enumerate(samples):
            if number % 20 == 0 and verdict != verdicts.KEEP:
                spoil(sample, verdict)
            sample.jpg += bytes(150_000)  # decoders stop at the end marker

    rows = {1: 50, 2: 500}
    for shard, num_rows in rows.items():
        small_shard(tmp_path, shard, num_rows, pad)
    peaks = peak_memory_mb(tmp_path, rows)
    assert peaks[1] < peaks[0] + 20, peaks
    assert peaks[1] < 400


def test_memory_is_that_of_a_few_large_samples(tmp_path):
    """Twenty of 8 MB: as many are held at a time as keep below a limit in bytes."""

    def pad(samples):
        for sample in samples:
            sample.jpg += bytes(8_000_000)

    rows = {1: 1, 2: 20}
    for shard, num_rows in rows.items():
        small_shard(tmp_path, shard, num_rows, pad)
    peaks = peak_memory_mb(tmp_path, rows)
    assert peaks[1] < peaks[0] + 60, peaks
