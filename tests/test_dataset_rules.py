"""The dataset rules through Snakemake: what runs, what does not, and that the whole way is planned."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from dataset_helpers import TINY_PHOTOS, reference_tar
from helpers import CHECKOUT, job_stats, jobs_by_rule, snakemake
from raw_shards import RawSample, make_rows, write_shard
from shardwright.files import sha256_file

ROWS, SHARDS, TOTAL, PER_TAR = 20, 3, 54, 8
ROOT = "results/small"
RULES = (
    *("audit_shard", "audit_totals", "audit_summary", "select_samples"),
    *("convert_tar", "index_dataset", "write_manifest", "dataset"),
)
METADATA = {"file": "urls.parquet", "rows": ROWS * SHARDS, "bytes": 1, "sha256": "0" * 64}


def shard_samples(shard: int) -> list[RawSample]:
    """The samples of one raw shard in key order."""
    return make_rows(shard, ROWS, photos=TINY_PHOTOS, rows_per_shard=ROWS, seed=5)[0]


def in_val(sample: RawSample) -> bool:
    """The split rule, spelled out."""
    first = hashlib.sha256(sample.metadata["uid"].encode()).digest()[:8]
    return int.from_bytes(first, "big") / 2**64 < 0.2


def tars_of(samples: list[RawSample]) -> dict[str, list[RawSample]]:
    """The samples of each tar, by its stem."""
    splits = {
        "train": [sample for sample in samples if not in_val(sample)],
        "val": [sample for sample in samples if in_val(sample)],
    }
    return {
        f"{split}-{start // PER_TAR:06d}": members[start : start + PER_TAR]
        for split, members in splits.items()
        for start in range(0, len(members), PER_TAR)
    }


SAMPLES = [sample for shard in range(SHARDS) for sample in shard_samples(shard)]
TARS = tars_of(SAMPLES[:TOTAL])


def write_config(folder: Path, **samples: object) -> None:
    """Write the pin table and the config; `samples` changes its section."""
    pin = "\t".join(map(str, METADATA.values()))
    (folder / "pins.tsv").write_text(f"file\trows\tbytes\tsha256\n{pin}\n")
    num_tars = {split: sum(stem.startswith(split) for stem in TARS) for split in ("train", "val")}
    section = {"total": TOTAL, "validation_fraction": 0.2, "per_tar": PER_TAR, "tars": num_tars, **samples}
    config = {
        "build": "small",
        "model": "config/models/tiny.yaml",
        "metadata": {"pins": "pins.tsv", "repo": "someone/some-urls", "revision": "0" * 40},
        "download": {"rows_per_shard": ROWS},
        "samples": section,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def run(folder: Path, *args: str, cores: int = 2, check: bool = True) -> str:
    """Run the target `dataset` on the raw shards that are there; return what Snakemake said."""
    options = ("--configfile", str(folder / "config.yaml"), *args)
    return snakemake(folder, "dataset", "--allowed-rules", *RULES, *options, cores=cores, check=check).stdout


def converted(output: str) -> set[str]:
    """The stems of the tars that were written."""
    found = re.findall(
        r"^(?:local)?rule convert_tar:\n(?: .*\n)*? +wildcards: split=(\w+), part=(\d+)", output, re.MULTILINE
    )
    return {f"{split}-{part}" for split, part in found}


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each tar, by its stem."""
    paths = sorted((folder / ROOT / "energon").glob("*.tar"))
    return {path.stem.replace("-shard-", "-"): sha256_file(path) for path in paths}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with raw shards, from which the dataset was built on 8 job slots."""
    folder = tmp_path_factory.mktemp("built")
    for shard in range(SHARDS):
        write_shard(folder / ROOT / "raw", shard, shard_samples(shard))
    (folder / ROOT / "metadata").mkdir()
    (folder / ROOT / "metadata/urls.json").write_text(json.dumps(METADATA))
    (folder / ROOT / "metadata/urls.parquet").write_bytes(b"x")
    write_config(folder)
    output = run(folder, cores=8)
    assert converted(output) == set(TARS)
    return folder


@pytest.fixture
def copy(built, tmp_path) -> Path:
    """A copy of the built folder, times kept, that a test may change."""
    return shutil.copytree(built, tmp_path / "copy")


def reference(tars: dict[str, list[RawSample]]) -> dict[str, str]:
    """The digests that the described format gives."""
    made = {}
    for stem, samples in tars.items():
        data = reference_tar(samples)
        data = data.replace(
            b'"revision":"0123456789abcdef0123456789abcdef01234567"', b'"revision":"' + b"0" * 40 + b'"'
        )
        made[stem] = hashlib.sha256(data).hexdigest()
    return made


def test_the_build_writes_the_described_bytes_and_is_done(built):
    """Issue point 1 at 8 jobs; a second run has nothing to do; the graph shows the whole way."""
    assert digests(built) == reference(TARS)
    again = run(built)
    assert "Nothing to be done" in again and not jobs_by_rule(again)
    graph = run(built, "--rulegraph")
    assert all(f'label = "{rule}"' in graph for rule in RULES)


def test_a_dry_run_of_the_reference_slice_lists_every_job(tmp_path):
    """The plan is static: 216 shards and 53 tars are known before anything is there."""
    done = snakemake(tmp_path, "dataset", "-n", "--configfile", str(CHECKOUT / "config/datacomp.yaml"))
    stats = job_stats(done.stdout)
    assert (stats["audit_shard"], stats["select_samples"], stats["convert_tar"]) == (216, 1, 53)
    assert (stats["index_dataset"], stats["write_manifest"]) == (1, 1)


def test_a_replaced_raw_shard_rebuilds_only_the_tars_it_changes(copy):
    """Issue point 4, in one invocation: one audit, the selection, the tars with that sample."""
    samples = shard_samples(1)
    samples[7].metadata["caption"] = "another caption"
    write_shard(copy / ROOT / "raw", 1, samples)
    output = run(copy)
    changed = {stem for stem, members in TARS.items() if samples[7].key in [member.key for member in members]}
    assert converted(output) == changed and len(changed) == 1
    jobs = jobs_by_rule(output)
    assert (jobs["audit_shard"], jobs["select_samples"], jobs["index_dataset"]) == (1, 1, 1)
    now = [*shard_samples(0), *samples, *shard_samples(2)]
    assert digests(copy) == reference(tars_of(now[:TOTAL]))


def test_the_same_samples_in_another_order_rebuild_no_tar(copy):
    """A shard downloaded again in another thread order: audited and selected again, no tar written."""
    before = digests(copy)
    write_shard(copy / ROOT / "raw", 1, shard_samples(1), seed=99)
    jobs = jobs_by_rule(run(copy))
    assert jobs["audit_shard"] == jobs["select_samples"] == 1
    assert jobs["convert_tar"] == jobs["index_dataset"] == 0
    assert digests(copy) == before


def test_an_excluded_uid_rebuilds_the_tars_from_that_point_on(copy):
    """Takedown: the sample is gone from the set, the tars before it are not touched, no audit runs."""
    train = [sample for sample in SAMPLES[:TOTAL] if not in_val(sample)]
    gone = train[2 * PER_TAR + 3]
    (copy / "exclude.txt").write_text(f"# a request\n{gone.metadata['uid']}\n")
    write_config(copy, exclude="exclude.txt")
    output = run(copy)
    after = tars_of([sample for sample in SAMPLES if sample.key != gone.key][:TOTAL])
    changed = {stem for stem in after if reference(after)[stem] != reference(TARS)[stem]}
    assert converted(output) == changed
    assert {"train-000000", "train-000001"}.isdisjoint(changed) and "train-000002" in changed
    assert jobs_by_rule(output)["audit_shard"] == 0
    assert digests(copy) == reference(after)


def test_a_deleted_tar_is_the_only_one_written_again(copy):
    """And a deleted index of a tar brings back that index with its tar."""
    before = digests(copy)
    (copy / ROOT / "energon/train-shard-000001.tar").unlink()
    (copy / ROOT / "energon/val-shard-000000.tar.idx").unlink()
    output = run(copy)
    assert converted(output) == {"train-000001", "val-000000"}
    assert jobs_by_rule(output)["select_samples"] == jobs_by_rule(output)["audit_shard"] == 0
    assert digests(copy) == before


def test_another_prompt_writes_every_tar_and_audits_nothing(copy):
    write_config(copy, prompt="What do you see?")
    output = run(copy)
    assert converted(output) == set(TARS)
    assert jobs_by_rule(output)["audit_shard"] == jobs_by_rule(output)["select_samples"] == 0
    assert set(digests(copy).values()).isdisjoint(reference(TARS).values())
    manifest = json.loads((copy / ROOT / "energon/manifest.json").read_text())
    assert manifest["adaptation"]["prompt"] == "What do you see?"


def test_altered_and_missing_metadata_is_found_by_the_target(copy):
    """R32, issue point 5: an edited split.yaml is refused with the way out, which then works."""
    split = copy / ROOT / "energon/.nv-meta/split.yaml"
    split.write_text(split.read_text().replace("train-shard-", "test-shard-"))
    refused = run(copy, check=False)
    assert "split.yaml: found SHA-256" in refused and "Next: delete it" in refused
    split.unlink()
    jobs = jobs_by_rule(run(copy))
    assert jobs["index_dataset"] == jobs["write_manifest"] == 1 and jobs["convert_tar"] == 0


def test_an_altered_tar_is_found_by_the_target(copy):
    """One flipped byte in a finished tar."""
    tar = copy / ROOT / "energon/train-shard-000000.tar"
    data = bytearray(tar.read_bytes())
    data[700] ^= 1
    tar.write_bytes(data)
    refused = run(copy, check=False)
    assert "train-shard-000000.tar: found" in refused and "Next: delete it" in refused
    tar.unlink()
    assert converted(run(copy)) == {"train-000000"}
    assert digests(copy) == reference(TARS)


def test_a_missing_exclusion_list_stops_the_selection(copy):
    write_config(copy, exclude="nowhere.txt")
    refused = run(copy, check=False)
    assert "nowhere.txt: found no such file" in refused and "samples.exclude" in refused
