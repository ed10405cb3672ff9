"""The audit of one raw shard: does it hang together, and which of its samples are fit to keep."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from shardwright import verdicts
from shardwright.audit_sample import Expectations, Judged, judge_samples
from shardwright.files import replacing, write_json
from shardwright.histograms import SampleShapes
from shardwright.raw_counts import Attempts, check_attempts, check_keys
from shardwright.rawshard import RawSample, group_samples
from shardwright.rawtar import BadTar, walk_members

FORMAT = 1
CHUNK, CHUNK_BYTES = 64, 16 << 20
MAX_LISTED = 50
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("uid", pa.string()),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("jpg_offset", pa.int64(), nullable=False),
        pa.field("jpg_size", pa.int64(), nullable=False),
        pa.field("json_offset", pa.int64(), nullable=False),
        pa.field("json_size", pa.int64(), nullable=False),
        pa.field("txt_offset", pa.int64(), nullable=False),
        pa.field("txt_size", pa.int64(), nullable=False),
        pa.field("jpg_sha256", pa.string(), nullable=False),
        pa.field("json_sha256", pa.string(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("caption_chars", pa.int32()),
    ]
)


class RawFiles(NamedTuple):
    """The three files of a raw shard and its number as file names carry it."""

    shard: str
    tar: Path
    parquet: Path
    stats: Path

    @property
    def next_step(self) -> str:
        """What mends a damaged shard."""
        return f"delete {self.tar} and run the same command again: the shard is downloaded anew"


def read_samples(descriptor: int, files: RawFiles) -> list[RawSample]:
    """Walk the tar and group its members.

    Raises:
        BuildError: A fault of structure: file, member, found, expected, next step.
    """
    try:
        return group_samples(walk_members(descriptor), files.shard)
    except BadTar as fault:
        raise fault.as_build_error(files.tar, files.next_step) from None


def _chunks(samples: list[RawSample]) -> Iterator[list[RawSample]]:
    """Cut samples into chunks whose bytes one thread holds at a time."""
    start = num_bytes = 0
    for number, sample in enumerate(samples):
        begin, end = sample.span
        if number > start and (number - start == CHUNK or num_bytes + end - begin > CHUNK_BYTES):
            yield samples[start:number]
            start, num_bytes = number, 0
        num_bytes += end - begin
    yield samples[start:]


def judge_all(
    descriptor: int, samples: list[RawSample], expected: Expectations, threads: int
) -> Iterator[Judged]:
    """Judge the samples in the tar's order; decoding and hashing run beside each other on threads."""
    chunks = _chunks(samples)
    if threads == 1:
        for chunk in chunks:
            yield from judge_samples(descriptor, chunk, expected)
        return
    with ThreadPoolExecutor(threads) as pool:
        for judged in pool.map(lambda chunk: judge_samples(descriptor, chunk, expected), chunks):
            yield from judged


class ShardCounts:
    """Sums what the samples of one shard show, so that shards can be summed in turn."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.shapes = SampleShapes()
        self.jpg_digests: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.adjustments: Counter[str] = Counter()
        self.dropped: list[dict[str, Any]] = []
        self.near_constant: list[str] = []

    def add(self, judged: Judged) -> None:
        """Take one sample."""
        sample = judged.sample
        self.verdicts[judged.verdict] += 1
        self.jpg_digests[judged.jpg_sha256] += 1
        self.counts["face_boxes"] += judged.num_face_boxes
        self.counts["samples_with_face_boxes"] += judged.num_face_boxes > 0
        self.counts["sideways"] += judged.sideways
        if judged.adjustments:
            self.adjustments.update(judged.adjustments)
        self.counts["jpg_bytes"] += sample.jpg.size
        self.counts["json_bytes"] += sample.json.size
        self.counts["txt_bytes"] += sample.txt.size
        if judged.verdict != verdicts.KEEP:
            self.dropped.append(
                {"key": sample.key, "uid": judged.uid, "verdict": judged.verdict, "detail": judged.detail}
            )
            return
        self._add_kept(judged)

    def _add_kept(self, judged: Judged) -> None:
        jpeg = judged.jpeg
        assert jpeg is not None and judged.caption_chars is not None
        self.shapes.add(judged.sample.jpg.size, jpeg.width, jpeg.height, judged.caption_chars)
        self.counts["grey"] += jpeg.mode == "L"
        self.counts["unclean_captions"] += not judged.caption_clean
        self.counts["stated_size_wrong"] += judged.stated_size != (jpeg.width, jpeg.height)
        if jpeg.near_constant:
            self.near_constant.append(judged.sample.key)

    def repeated(self) -> dict[str, Any]:
        """Equal JPEGs inside the shard: samples beyond the first of each, and the most frequent."""
        repeated = {digest: count for digest, count in self.jpg_digests.items() if count > 1}
        top = sorted(repeated.items(), key=lambda item: (-item[1], item[0]))[:MAX_LISTED]
        return {"extra_samples": sum(repeated.values()) - len(repeated), "top": dict(top)}


def _table(judged: list[Judged]) -> pa.Table:
    """The rows of a shard in key order, whatever the order of its tar."""
    rows = sorted(judged, key=lambda row: row.sample.key)
    samples = [row.sample for row in rows]
    columns = {
        "key": [sample.key for sample in samples],
        "uid": [row.uid for row in rows],
        "verdict": [row.verdict for row in rows],
        "jpg_sha256": [row.jpg_sha256 for row in rows],
        "json_sha256": [row.json_sha256 for row in rows],
        "width": [row.jpeg and row.jpeg.width for row in rows],
        "height": [row.jpeg and row.jpeg.height for row in rows],
        "caption_chars": [row.caption_chars for row in rows],
    }
    for suffix in ("jpg", "json", "txt"):
        columns[f"{suffix}_offset"] = [getattr(sample, suffix).offset for sample in samples]
        columns[f"{suffix}_size"] = [getattr(sample, suffix).size for sample in samples]
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def content_sha256(table: pa.Table) -> str:
    """One digest of all samples of a shard: equal for two downloads that gave the same samples.

    The raw tar's own digest would differ each time, by time stamps and by the order of threads.
    """
    digest = hashlib.sha256()
    for key, jpg, meta in zip(
        *(table[name].to_pylist() for name in ("key", "jpg_sha256", "json_sha256")), strict=True
    ):
        digest.update(f"{key} {jpg} {meta}\n".encode())
    return digest.hexdigest()


def _report(files: RawFiles, attempts: Attempts, counts: ShardCounts, table: pa.Table) -> dict[str, Any]:
    dropped = sorted(counts.dropped, key=lambda row: row["key"])
    return {
        "format": FORMAT,
        "shard": files.shard,
        "attempts": attempts.num_rows,
        "successes": len(attempts.success_keys),
        "failures": attempts.failures,
        "members": 3 * len(table),
        "samples": len(table),
        "verdicts": {name: counts.verdicts[name] for name in verdicts.AUDIT_VERDICTS},
        "counts": dict(sorted(counts.counts.items())) | {"near_constant": len(counts.near_constant)},
        "adjustments": dict(sorted(counts.adjustments.items())),
        "histograms": counts.shapes.as_json(),
        "repeated_images": counts.repeated(),
        "near_constant_keys": sorted(counts.near_constant)[:MAX_LISTED],
        "dropped": dropped[:MAX_LISTED],
        "tar_bytes": files.tar.stat().st_size,
        "content_sha256": content_sha256(table),
    }


def check_report(report: dict[str, Any], rows: int) -> None:
    """Every attempt and every member is accounted for; anything else is a bug of ours."""
    num_failures = sum(report["failures"].values())
    assert report["attempts"] == rows == report["successes"] + num_failures, report
    assert report["samples"] == report["successes"] == sum(report["verdicts"].values()), report
    assert report["members"] == 3 * report["samples"], report


def audit_shard(
    files: RawFiles, rows: int, samples_path: Path, report_path: Path, expected: Expectations, threads: int
) -> dict[str, Any]:
    """Audit one raw shard and write its rows, then its report.

    Args:
        files: The shard's three files.
        rows: Rows of metadata that the plan gives the shard.
        samples_path: Parquet to write, one row a sample in key order.
        report_path: JSON to write, counts that can be summed over shards.
        expected: What the config says of this build.
        threads: Threads that decode and hash.

    Returns:
        The report.

    Raises:
        BuildError: A fault of structure; nothing is written.
    """
    attempts = check_attempts(files.parquet, files.stats, rows, files.next_step)
    descriptor = os.open(files.tar, os.O_RDONLY)
    try:
        samples = read_samples(descriptor, files)
        check_keys(files.tar, frozenset(sample.key for sample in samples), attempts, files.next_step)
        counts, judged = ShardCounts(), []
        for row in judge_all(descriptor, samples, expected, threads):
            counts.add(row)
            judged.append(row)
    finally:
        os.close(descriptor)
    table = _table(judged)
    report = _report(files, attempts, counts, table)
    check_report(report, rows)
    with replacing(samples_path) as scratch:
        pq.write_table(table, scratch, compression="zstd")
    write_json(report_path, report)
    return report
