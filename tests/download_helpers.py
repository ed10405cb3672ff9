"""Shared by the download tests: pictures, metadata parquets, settings, runs of the real program."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from helpers import CHECKOUT, SCRIPTS, child_env
from image_server import ImageServer, Page, body
from shardwright.config_check import check_against
from shardwright.download.fetch import Fetcher
from shardwright.download.fetch_error import FetchError
from shardwright.download.resizer import PictureResizer, Stored
from shardwright.download.settings import Content, Fetching
from shardwright.download.triple import Triple, find_disagreement
from shardwright.failures import CLASSES

COLUMNS = "url=url text=text uid=uid face_bboxes=face_bboxes"
PRIVATE = "private_address: the host is at a private, loopback or link-local address"
QUICK = {
    "allow_private_addresses": True,
    "thread_count": 8,
    "timeout_s": 2,
    "url_deadline_s": 4,
    "retries": 2,
    "stall_s": 20,
    "min_success_rate": 0.0,
    "outage_wait_s": 0,
    "log_interval_s": 0.5,
}


@functools.cache
def _schema() -> dict[str, Any]:
    return yaml.safe_load((CHECKOUT / "config/schema/download.yaml").read_text())


def settings(**changes: Any) -> tuple[Content, Fetching]:
    """The schema's defaults, made quick for loopback, with `changes`."""
    values = check_against({**QUICK, **changes}, _schema())
    return tuple(
        kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
        for kind in (Content, Fetching)
    )


def photo(seed: int, width: int = 96, height: int = 64, suffix: str = "JPEG", **save: Any) -> bytes:
    """A smooth coloured picture with some texture."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels = pixels + rng.normal(0, 4, pixels.shape).astype(np.int16)
    return encoded(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), suffix, **save)


def encoded(picture: Image.Image, suffix: str, **save: Any) -> bytes:
    """The picture as a file of the given format."""
    stream = io.BytesIO()
    picture.save(stream, suffix, **save)
    return stream.getvalue()


def uid_of(number: int) -> str:
    """32 hex digits that depend on the number alone."""
    return hashlib.md5(str(number).encode()).hexdigest()


def make_parquet(path: Path, urls: list[str | None], **columns: list[Any]) -> Path:
    """A metadata parquet with DataComp's columns; captions and boxes may be given."""
    count = len(urls)
    table = pa.table(
        {
            "uid": pa.array([uid_of(number) for number in range(count)], pa.string()),
            "url": pa.array(urls, pa.string()),
            "text": pa.array(columns.get("text", [f"caption {n}" for n in range(count)]), pa.string()),
            "face_bboxes": pa.array(
                columns.get("face_bboxes", [[]] * count), pa.list_(pa.list_(pa.float64()))
            ),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def command(root: Path, parquet: Path, rows: int, *, shard: int = 0, **changes: Any) -> list[str]:
    """The command line that downloads all rows of a parquet as one shard below `root`."""
    content, fetching = settings(**changes)
    raw = root / "raw"
    return [
        sys.executable,
        str(SCRIPTS / "download_shard.py"),
        *("--metadata", str(parquet), "--columns", COLUMNS),
        *("--shard", f"{shard:08d}", "--start", "0", "--stop", str(rows), "--rows-per-shard", "100"),
        *("--content", json.dumps(dataclasses.asdict(content))),
        *("--fetching", json.dumps(dataclasses.asdict(fetching))),
        *("--tar", str(raw / f"{shard:08d}.tar"), "--parquet", str(raw / f"{shard:08d}.parquet")),
        *("--stats", str(raw / f"{shard:08d}_stats.json")),
    ]


def download(
    root: Path, urls: list[str | None], *, check: bool = True, prefix: tuple[str, ...] = (), **changes: Any
) -> subprocess.CompletedProcess[str]:
    """Download `urls` as shard 0 below `root` with the real program."""
    columns = {name: changes.pop(name) for name in ("text", "face_bboxes") if name in changes}
    parquet = make_parquet(root / "metadata/urls.parquet", urls, **columns)
    done = subprocess.run(
        [*prefix, *command(root, parquet, len(urls), **changes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=child_env(no_proxy="*"),
        timeout=120,
    )
    assert not check or done.returncode == 0, done.stdout[-4000:]
    return done


def samples(tar: Path) -> dict[str, dict[str, Any]]:
    """Key → its jpg and txt (bytes) and json (parsed)."""
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            key, _, suffix = member.name.partition(".")
            data = archive.extractfile(member).read()
            found.setdefault(key, {})[suffix] = json.loads(data) if suffix == "json" else data
    return found


def outcomes(root: Path, shard: int = 0) -> dict[str, tuple[str, str | None]]:
    """Key → status and error message, from the raw parquet."""
    rows = pq.read_table(root / f"raw/{shard:08d}.parquet").to_pylist()
    return {row["key"]: (row["status"], row["error_message"]) for row in rows}


def stats(root: Path, shard: int = 0) -> dict[str, Any]:
    """The shard's stats."""
    return json.loads((root / f"raw/{shard:08d}_stats.json").read_text())


def agrees(root: Path, rows: int) -> None:
    """Assert that shard 0 below `root` agrees with itself and has all its rows."""
    expected = [f"{number:010d}" for number in range(rows)]
    assert find_disagreement(Triple.inside(root / "raw", "00000000"), expected) is None


def fetcher(**changes: Any) -> Fetcher:
    """A fetcher with quick settings."""
    return Fetcher(*settings(**changes))


def failure(url: str, **changes: Any) -> str:
    """The message with which fetching `url` fails."""
    with pytest.raises(FetchError) as caught:
        fetcher(**changes).fetch(url)
    assert caught.value.kind in CLASSES
    return str(caught.value)


def fetched(page: Page, path: str = "/a.jpg", **changes: Any) -> bytes:
    """The body that a page gives."""
    with ImageServer({"*": page}) as server:
        return fetcher(**changes).fetch(server.url(path)).read()


def store(data: bytes, boxes: Sequence[Any] = (), **changes: Any) -> Stored:
    """What the picture rules make of a file."""
    return PictureResizer(settings(**changes)[0]).store(data, list(boxes))


def pixels(stored: Stored) -> np.ndarray:
    """The stored pixels, RGB."""
    return np.asarray(Image.open(io.BytesIO(stored.jpeg)).convert("RGB")).astype(int)


def refused(data: bytes, **changes: Any) -> str:
    """The message with which a file is refused."""
    with pytest.raises(FetchError) as caught:
        store(data, **changes)
    return str(caught.value)


def pages(count: int) -> dict[str, Page]:
    """Pages `/0.jpg`, `/1.jpg`, … of different photos."""
    return {f"/{n}.jpg": body(photo(n)) for n in range(count)}


def only_the_triple(root: Path) -> None:
    """Assert that raw/ holds one shard's files and the scratch folder nothing."""
    names = sorted(path.name for path in (root / "raw").iterdir())
    assert names == ["00000000.parquet", "00000000.tar", "00000000_stats.json"]
    assert not any((root / "scratch").iterdir())
