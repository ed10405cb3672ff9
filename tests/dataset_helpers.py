"""Raw shards with a hand-made audit, and the reference form of a dataset tar, for dataset tests.

The audit here is written with `tarfile` and plain Python, so that these tests do not lean on
`audit_shard`; the reference tar is written with `tarfile` and `json` alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import convert_tar
import index_dataset
import select_samples
from photos import make_photos
from raw_shards import RawSample, make_rows, write_shard
from shardwright import verdicts

REPO = "someone/some-urls"
REVISION = "0123456789abcdef0123456789abcdef01234567"
PROMPT = "Describe this image."
TINY_PHOTOS = make_photos(3, width=16, height=12)


def tiny_shard(folder: Path, shard: int, num_rows: int, **options: Any) -> list[RawSample]:
    """Write a raw shard of tiny pictures (without failures); return its samples in key order."""
    samples, _ = make_rows(shard, num_rows, photos=TINY_PHOTOS, seed=options.pop("seed", 0))
    write_shard(folder, shard, samples, **options)
    return samples


def audit_rows(tar: Path, faults: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows that an audit of `tar` gives; `faults` maps keys to verdicts."""
    rows: dict[str, dict[str, Any]] = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            key, _, suffix = member.name.partition(".")
            row = rows.setdefault(key, {"key": key, "verdict": (faults or {}).get(key, verdicts.KEEP)})
            row |= {f"{suffix}_offset": member.offset_data, f"{suffix}_size": member.size}
            data = archive.extractfile(member).read()
            if suffix in ("jpg", "json"):
                row[f"{suffix}_sha256"] = hashlib.sha256(data).hexdigest()
            if suffix == "json":
                row["uid"] = json.loads(data)["uid"]
    return [rows[key] for key in sorted(rows)]


def write_audit(folder: Path, shard: int, rows: list[dict[str, Any]]) -> None:
    """Write one shard's audit rows."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{shard:08d}.samples.parquet")


def write_totals(folder: Path) -> None:
    """Write what select_samples reads of the audit's totals."""
    num_samples = sum(pq.read_metadata(path).num_rows for path in folder.glob("*.samples.parquet"))
    (folder / "totals.json").write_text(json.dumps({"samples": num_samples}))


def audited_shards(root: Path, sizes: Sequence[int], **options: Any) -> list[RawSample]:
    """Write raw shards of tiny pictures and their audits below `root`; return all samples in order."""
    samples = []
    for shard, num_rows in enumerate(sizes):
        samples += tiny_shard(root / "raw", shard, num_rows, **options)
        write_audit(root / "audit", shard, audit_rows(root / f"raw/{shard:08d}.tar"))
    write_totals(root / "audit")
    return samples


def select(root: Path, num_shards: int, total: int, tars: tuple[int, int], **options: Any) -> dict[str, Any]:
    """Run select_samples on `root` and return its summary; `options` become command-line options."""
    given = {"validation_fraction": 0.0, "per_tar": 10, **options}
    extra = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    select_samples.main(
        [
            *("--audit", str(root / "audit"), "--num-shards", str(num_shards), "--total", str(total)),
            *("--num-train", str(tars[0]), "--num-val", str(tars[1])),
            *("--summary", str(root / "plan/summary.json")),
            *extra,
        ]
    )
    return json.loads((root / "plan/summary.json").read_text())


def convert_args(root: Path, stem: str, prompt: str = PROMPT) -> list[str]:
    """The options of convert_tar for one plan below `root`."""
    split, _, part = stem.partition("-")
    return [
        *("--plan", str(root / f"plan/{stem}.parquet"), "--raw", str(root / "raw")),
        *("--repo", REPO, "--revision", REVISION, "--prompt", prompt),
        *("--tar", str(root / f"energon/{split}-shard-{part}.tar")),
        *("--members", str(root / f"index/{stem}.parquet"), "--receipt", str(root / f"index/{stem}.json")),
    ]


def convert_all(root: Path, prompt: str = PROMPT) -> dict[str, bytes]:
    """Run convert_tar for every plan below `root`; return the bytes of each tar by its stem."""
    for stem in plan_stems(root):
        convert_tar.main(convert_args(root, stem, prompt))
    return {
        stem: (root / "energon" / "{}-shard-{}.tar".format(*stem.split("-"))).read_bytes()
        for stem in plan_stems(root)
    }


def index(root: Path, **options: Any) -> dict[str, Any]:
    """Run index_dataset on `root` and return its receipt."""
    extra = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    index_dataset.main(
        [
            *("--plan", str(root / "plan/summary.json"), "--dataset", str(root / "energon")),
            *("--receipt", str(root / "index/index.json"), *extra),
        ]
    )
    return json.loads((root / "index/index.json").read_text())


def build(root: Path, sizes: Sequence[int], tars: tuple[int, int], **options: Any) -> list[RawSample]:
    """Make shards, select all samples, convert every tar, index; return the samples in order."""
    samples = audited_shards(root, sizes)
    select(root, len(sizes), sum(sizes), tars, **options)
    convert_all(root)
    index(root)
    return samples


def plan_stems(root: Path) -> list[str]:
    """The tars that the plan of `root` names."""
    return sorted(json.loads((root / "plan/summary.json").read_text())["parts"])


def reference_conversation(metadata: dict[str, Any], prompt: str = PROMPT) -> bytes:
    """The conversation of one sample, spelled out."""
    example = {
        "conversation": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]},
            {"role": "assistant", "content": [{"type": "text", "text": metadata["caption"]}]},
        ],
        "source": {
            "dataset": REPO,
            "revision": REVISION,
            "uid": metadata["uid"],
            "url": metadata.get("url"),
            "source_key": metadata.get("key"),
            "download_status": metadata.get("status"),
            "original_download_sha256": metadata.get("sha256"),
            "face_bbox_count": len(metadata["face_bboxes"]),
            "width": metadata.get("width"),
            "height": metadata.get("height"),
            "original_width": metadata.get("original_width"),
            "original_height": metadata.get("original_height"),
        },
    }
    return json.dumps(example, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def reference_tar(samples: Sequence[RawSample], prompt: str = PROMPT) -> bytes:
    """The tar of these samples as the format describes it, written by the standard library."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for sample in samples:
            uid = sample.metadata["uid"]
            conversation = reference_conversation(sample.metadata, prompt)
            for name, data in ((f"{uid}.image.jpg", sample.jpg), (f"{uid}.conversation.json", conversation)):
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = len(data), 0, 0o644
                info.uid, info.gid, info.uname, info.gname = 0, 0, "", ""
                archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()
