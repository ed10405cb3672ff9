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

from helpers import run_program
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


def audited_shards(root: Path, sizes: Sequence[int], **options: Any) -> list[RawSample]:
    """Write raw shards of tiny pictures and their audits below `root`; return all samples in order."""
    samples = []
    for shard, num_rows in enumerate(sizes):
        samples += tiny_shard(root / "raw", shard, num_rows, **options)
        write_audit(root / "audit", shard, audit_rows(root / f"raw/{shard:08d}.tar"))
    return samples


def select(root: Path, num_shards: int, total: int, tars: tuple[int, int], **options: Any):
    """Run select_samples on `root`; `options` are further command-line options."""
    given = {"validation-fraction": 0.0, "per-tar": 10, **options}
    check = given.pop("check", True)
    extra = [item for name, value in given.items() for item in (f"--{name}", value)]
    return run_program(
        "select_samples",
        *("--audit", root / "audit", "--num-shards", num_shards, "--total", total),
        *("--num-train", tars[0], "--num-val", tars[1]),
        *("--summary", root / "plan/summary.json"),
        *extra,
        check=check,
    )


def convert(root: Path, stem: str, check: bool = True, prompt: str = PROMPT, **env: str):
    """Run convert_tar for one plan below `root`."""
    split, _, part = stem.partition("-")
    return run_program(
        "convert_tar",
        *("--plan", root / f"plan/{stem}.parquet", "--raw", root / "raw"),
        *("--repo", REPO, "--revision", REVISION, "--prompt", prompt),
        *("--tar", root / f"energon/{split}-shard-{part}.tar"),
        *("--members", root / f"index/{stem}.parquet", "--receipt", root / f"index/{stem}.json"),
        check=check,
        **env,
    )


def index(root: Path, check: bool = True, **options: Any):
    """Run index_dataset on `root`."""
    extra = [item for name, value in options.items() for item in (f"--{name}", value)]
    return run_program(
        "index_dataset",
        *("--plan", root / "plan/summary.json", "--dataset", root / "energon"),
        *("--receipt", root / "index/index.json", *extra),
        check=check,
    )


def build(root: Path, sizes: Sequence[int], tars: tuple[int, int], **options: Any) -> list[RawSample]:
    """Make shards, select all samples, convert every tar, index; return the samples in order."""
    samples = audited_shards(root, sizes)
    select(root, len(sizes), sum(sizes), tars, **options)
    for stem in plan_stems(root):
        convert(root, stem)
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
    return json.dumps(example, ensure_ascii=False, separators=(",", ":")).encode()


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
