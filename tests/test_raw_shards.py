"""The maker of raw shards writes what img2dataset's own writer writes."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq
import webdataset

from photos import make_photos
from raw_shards import MTIME, make_rows, write_shard


def test_tar_equals_the_writer_of_img2dataset(tmp_path):
    """img2dataset hands webdataset's TarWriter the members as bytes and text; every byte agrees."""
    samples, failures = make_rows(7, 40, photos=make_photos(5, width=64, height=48), failure_rate=0.3, seed=3)
    assert samples and failures
    ours = write_shard(tmp_path / "ours", 7, samples, failures, order="key")

    theirs = tmp_path / "theirs.tar"
    with webdataset.TarWriter(str(theirs), mtime=MTIME) as writer:
        for sample in samples:
            writer.write(
                {
                    "__key__": sample.key,
                    "jpg": sample.jpg,
                    "txt": sample.metadata["caption"],
                    "json": json.dumps(sample.metadata, indent=4),
                }
            )
    assert ours.tar.read_bytes() == theirs.read_bytes()

    rows = pq.read_table(ours.parquet).to_pylist()
    assert sorted(row["key"] for row in rows) == sorted(
        [sample.key for sample in samples] + [failure.row["key"] for failure in failures]
    )
    assert json.loads(ours.stats.read_text())["successes"] == len(samples)


def test_maker_depends_on_its_seed_alone(tmp_path):
    made = [
        write_shard(
            tmp_path / str(run),
            1,
            *make_rows(1, 20, photos=make_photos(3, seed, width=64), seed=seed),
            seed=seed,
        )
        for run, seed in enumerate((5, 5, 6))
    ]
    first, again, other = (files.tar.read_bytes() for files in made)
    assert first == again != other


def test_photos_weigh_what_the_reference_run_saw():
    """20.07 GB for 525,000 samples: 38 KB each."""
    photos = make_photos(10)
    assert 34_000 < sum(map(len, photos)) / len(photos) < 42_000
    assert webdataset.autodecode.imagehandler("pil")("jpg", io.BytesIO(photos[0]).read()).size == (512, 384)
