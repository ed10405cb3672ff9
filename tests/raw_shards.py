"""Make raw shards as img2dataset writes them, from a seed, with every fault on request.

A shard is `{shard}.tar`, `{shard}.parquet` and `{shard}_stats.json`. The tar is webdataset's: pax
format, a pax header with a float mtime before every member, jpg json txt for each key, samples in
the order in which download threads end. test_raw_shards.py compares it byte for byte with
webdataset's own writer.

    photos = make_photos(200, seed=1)  # tests/photos.py
    samples, failures = make_rows(0, 1000, photos=photos, seed=1)
    spoil(samples[3], "blank_caption")
    write_shard(tmp_path / "raw", 0, samples, failures)
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from photos import with_comment
from shardwright import verdicts

Member = tuple[str, bytes]
MTIME = 1_700_000_000.25
RECORD_BYTES = 10240
ERROR_MESSAGES = (
    ("failed_to_download", "<urlopen error [Errno -2] Name or service not known>"),
    ("failed_to_download", "HTTP Error 404: Not Found"),
    ("failed_to_download", "HTTP Error 403: Forbidden"),
    ("failed_to_download", "HTTP Error 503: Service Unavailable"),
    ("failed_to_download", "<urlopen error timed out>"),
    ("failed_to_resize", "Image decoding error"),
)
WORDS = ("a", "photo", "of", "old", "red", "wooden", "house", "river", "dog", "street", "market", "blue")
ROW_SCHEMA = pa.schema(
    {
        "uid": pa.string(),
        "face_bboxes": pa.list_(pa.list_(pa.float64())),
        **dict.fromkeys(("caption", "url", "key", "status", "error_message"), pa.string()),
        **dict.fromkeys(("width", "height", "original_width", "original_height"), pa.int32()),
        **dict.fromkeys(("exif", "sha256"), pa.string()),
    }
)


@dataclass
class RawSample:
    """One success: its members are derived from `metadata` unless `json` or `txt` is set."""

    key: str
    jpg: bytes
    metadata: dict[str, Any]
    json: bytes | None = None
    txt: bytes | None = None

    def members(self) -> list[Member]:
        """Names and contents of the three members, in img2dataset's order."""
        caption = self.metadata["caption"]
        txt = self.txt if self.txt is not None else ("" if caption is None else str(caption)).encode()
        meta = self.json if self.json is not None else json.dumps(self.metadata, indent=4).encode()
        return [(f"{self.key}.jpg", self.jpg), (f"{self.key}.json", meta), (f"{self.key}.txt", txt)]


@dataclass(frozen=True)
class Failure:
    """One attempt that gave no sample: the row of the parquet."""

    row: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class ShardFiles:
    """Paths of a shard's three files."""

    tar: Path
    parquet: Path
    stats: Path


def make_uid(seed: int, shard: int, row: int) -> str:
    """Return 32 hex digits that look random and depend on the three numbers alone."""
    return hashlib.md5(f"{seed} {shard} {row}".encode()).hexdigest()


def _caption(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 18))) + rng.choice(("", ".", " é", " 日本", "\n"))


def _metadata(uid: str, key: str, rng: random.Random) -> dict[str, Any]:
    boxes = [[0.1, 0.2, 0.3, 0.4]] if rng.random() < 0.1 else []
    return {
        "uid": uid,
        "face_bboxes": boxes,
        "caption": _caption(rng),
        "url": f"http://images.example.invalid/{uid[:8]}.jpg",
        "key": key,
        "status": "success",
        **dict.fromkeys(ROW_SCHEMA.names[6:]),
    }


def make_rows(
    shard: int,
    num_rows: int,
    *,
    photos: Sequence[bytes],
    rows_per_shard: int = 10_000,
    failure_rate: float = 0.0,
    distinct: bool = True,
    seed: int = 0,
) -> tuple[list[RawSample], list[Failure]]:
    """Make the attempts of one shard, in key order.

    Args:
        shard: Shard number.
        num_rows: Attempts; each is a success or a failure.
        photos: JPEGs that the successes use in turn.
        rows_per_shard: Decides the width of the keys, as in img2dataset.
        failure_rate: Share of attempts that fail, with messages of `ERROR_MESSAGES`.
        distinct: Give each JPEG a comment of its own, so that equal pictures have other digests.
        seed: Everything depends on it and on `shard`.

    Returns:
        The samples and the failures.
    """
    digits = math.ceil(math.log10(rows_per_shard))
    rng = random.Random(f"{seed} {shard}")
    samples, failures = [], []
    sizes: dict[int, tuple[int, int]] = {}
    for row in range(num_rows):
        uid = make_uid(seed, shard, row)
        key = f"{shard * 10**digits + row:0{8 + digits}d}"
        metadata = _metadata(uid, key, rng)
        if rng.random() < failure_rate:
            status, message = rng.choice(ERROR_MESSAGES)
            failures.append(Failure({**metadata, "status": status, "error_message": message}))
            continue
        number = row % len(photos)
        if number not in sizes:
            sizes[number] = Image.open(io.BytesIO(photos[number])).size
        width, height = sizes[number]
        metadata.update(width=width, height=height, original_width=2 * width, original_height=2 * height)
        metadata.update(exif="{}", sha256=hashlib.sha256(uid.encode()).hexdigest())
        jpg = with_comment(photos[number], uid) if distinct else photos[number]
        samples.append(RawSample(key, jpg, metadata))
    return samples, failures


def _set(name: str, value: Any) -> Callable[[RawSample], None]:
    def change(sample: RawSample) -> None:
        sample.metadata[name] = value

    return change


def _set_bytes(name: str, value: bytes) -> Callable[[RawSample], None]:
    return lambda sample: setattr(sample, name, value)


def _cut_jpeg(sample: RawSample) -> None:
    sample.jpg = sample.jpg[: len(sample.jpg) // 2]


# One or more ways to earn each verdict that the audit can give.
CONTENT_FAULTS: dict[str, list[Callable[[RawSample], None]]] = {
    verdicts.CAPTION_NOT_UTF8: [_set_bytes("txt", b"caf\xe9"), _set_bytes("txt", b"\xed\xa0\x80")],
    verdicts.METADATA_NOT_JSON: [
        _set_bytes("json", b'{"uid": '),
        _set_bytes("json", b"[1, 2]"),
        _set_bytes("json", b""),
        _set_bytes("json", b'{"uid": "\xff"}'),
        _set_bytes("json", b"[" * 100_000),
    ],
    verdicts.BAD_UID: [
        _set("uid", "A" * 32),
        _set("uid", "ab12"),
        _set("uid", None),
        _set("uid", 7),
        _set("uid", "0" * 32 + "\n"),
        lambda sample: sample.metadata.pop("uid"),
    ],
    verdicts.KEY_MISMATCH: [_set("key", "000000009999"), _set("key", None)],
    verdicts.BAD_STATUS: [_set("status", "failed_to_resize"), _set("status", None)],
    verdicts.CAPTION_MISMATCH: [_set_bytes("txt", b"another caption"), _set("caption", None)],
    verdicts.BAD_FACE_BBOXES: [_set("face_bboxes", None), _set("face_bboxes", "[]")],
    verdicts.BLANK_CAPTION: [_set("caption", ""), _set("caption", " \t\n\u3000")],
    verdicts.BAD_JPEG: [_cut_jpeg, _set_bytes("jpg", b""), _set_bytes("jpg", b"<html></html>")],
}


def spoil(sample: RawSample, verdict: str, way: int = 0) -> None:
    """Give `sample` the fault behind `verdict`, in one of the ways of `CONTENT_FAULTS`."""
    CONTENT_FAULTS[verdict][way](sample)


def tar_pieces(members: Iterable[Member], mtime: float = MTIME) -> Iterator[bytes]:
    """Yield, piece by piece, the tar that webdataset's TarWriter would write for these members."""
    total = 2 * tarfile.BLOCKSIZE
    for name, data in members:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), mtime, 0o444
        info.uname = info.gname = "bigdata"
        header = info.tobuf(tarfile.PAX_FORMAT)
        padding = bytes(-len(data) % tarfile.BLOCKSIZE)
        total += len(header) + len(data) + len(padding)
        yield from (header, data, padding)
    yield bytes(2 * tarfile.BLOCKSIZE + -total % RECORD_BYTES)


def make_stats(samples: Sequence[RawSample], failures: Sequence[Failure]) -> dict[str, Any]:
    """Return the stats JSON that img2dataset would write for these attempts."""
    statuses = Counter(failure.row["status"] for failure in failures)
    messages = Counter(str(failure.row["error_message"]) for failure in failures)
    if samples:
        messages["success"] = len(samples)
    return {
        "count": len(samples) + len(failures),
        "successes": len(samples),
        "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"],
        "duration": 12.5,
        "start_time": MTIME,
        "end_time": MTIME + 12.5,
        "status_dict": dict(messages),
    }


def _parquet_row(metadata: dict[str, Any]) -> dict[str, Any]:
    """The parquet keeps what the download knew: faults put into the JSON member do not reach it."""
    row = {name: metadata.get(name) for name in ROW_SCHEMA.names}
    for name in ("uid", "caption", "key", "status"):
        row[name] = None if row[name] is None else str(row[name])
    row["face_bboxes"] = row["face_bboxes"] if isinstance(row["face_bboxes"], list) else None
    return row


def shard_files(folder: Path, shard: int) -> ShardFiles:
    """The paths of a shard in `folder`."""
    ends = (".tar", ".parquet", "_stats.json")
    return ShardFiles(*(folder / f"{shard:08d}{end}" for end in ends))


def write_shard(
    folder: Path,
    shard: int,
    samples: Sequence[RawSample],
    failures: Sequence[Failure] = (),
    *,
    order: str = "thread",
    seed: int = 0,
    edit_members: Callable[[list[Member]], list[Member]] = lambda members: members,
    edit_tar: Callable[[bytes], bytes] | None = None,
    edit_rows: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows,
    edit_stats: Callable[[dict[str, Any]], dict[str, Any]] = lambda stats: stats,
) -> ShardFiles:
    """Write the three files of a shard.

    Args:
        folder: Where to write; made if missing.
        shard: Shard number, for the file names.
        samples: Successes; written to the tar and the parquet.
        failures: Attempts without a sample; written to the parquet alone.
        order: `thread` shuffles the samples (from `seed`), `key` leaves them as they are.
        seed: For the shuffle.
        edit_members: Changes the list of (name, bytes) before the tar is made.
        edit_tar: Changes the finished bytes of the tar.
        edit_rows: Changes the rows of the parquet.
        edit_stats: Changes the stats.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = shard_files(folder, shard)
    ordered = list(samples)
    attempts = [sample.metadata | {"key": sample.key, "status": "success"} for sample in samples]
    attempts += [failure.row for failure in failures]
    if order == "thread":
        rng = random.Random(f"{seed} order {shard}")
        rng.shuffle(ordered)
        rng.shuffle(attempts)
    members = [member for sample in ordered for member in sample.members()]
    pieces: Iterable[bytes] = tar_pieces(edit_members(members))
    with files.tar.open("wb") as stream:
        stream.writelines([edit_tar(b"".join(pieces))] if edit_tar else pieces)
    rows = edit_rows([_parquet_row(attempt) for attempt in attempts])
    pq.write_table(pa.Table.from_pylist(rows, ROW_SCHEMA), files.parquet)
    stats = edit_stats(make_stats(samples, failures))
    files.stats.write_text(json.dumps(stats, indent=4))
    return files
