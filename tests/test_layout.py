"""The static plan: shards from pins, tars from the budget, before anything is downloaded."""

from __future__ import annotations

import math

import pytest

from helpers import CHECKOUT
from shardwright.errors import BuildError
from shardwright.layout import Pin, plan_shards, plan_tars, read_pins


def samples(**values) -> dict:
    return {"total": 525_000, "validation_fraction": 0.01, "per_tar": 10_000, "tars": None, **values}


def test_datacomp_slice_has_216_shards_and_53_tars():
    pins = read_pins(CHECKOUT / "config/pins/datacomp.tsv")
    shards = plan_shards(pins, 10_000)
    per_file = [sum(shard.name == pin.name for shard in shards) for pin in pins]
    assert per_file == [54, 52, 55, 55]
    assert [shard.shard_id for shard in shards] == list(range(216))
    assert sum(shard.stop - shard.start for shard in shards) == 2_133_334
    tars = plan_tars(samples(tars={"train": 52, "val": 1}), 2_133_334)
    assert [sum(tar.split == split for tar in tars) for split in ("train", "val")] == [52, 1]
    assert tars[0].stem == "train-000000"


@pytest.mark.parametrize("rows", [1, 59, 60, 61, 120])
def test_shards_cover_each_row_once(rows):
    shards = plan_shards([Pin("a", rows, 1, "0" * 64), Pin("b", 7, 1, "0" * 64)], 60)
    covered = [(s.name, row) for s in shards for row in range(s.start, s.stop)]
    assert covered == [("a", row) for row in range(rows)] + [("b", row) for row in range(7)]
    assert len(shards) == math.ceil(rows / 60) + 1


def test_a_tar_count_that_hangs_on_the_hash_split_is_refused():
    with pytest.raises(BuildError, match=r"samples\.per_tar 1000: found a train split.*samples\.tars"):
        plan_tars(samples(total=10_100, per_tar=1_000), 20_000)


def test_the_datacomp_budget_itself_needs_its_tar_count_pinned():
    """519,750 ± 288 train samples straddle 520,000, so config/datacomp.yaml pins the tars."""
    with pytest.raises(BuildError, match="519750 ± 288 samples, which may need 52 to 53 tars"):
        plan_tars(samples(), 2_133_334)


def test_pinned_tar_counts_settle_it():
    tars = plan_tars(samples(total=10_100, per_tar=1_000, tars={"train": 10, "val": 1}), 20_000)
    assert len(tars) == 11


@pytest.mark.parametrize(
    ("tars", "message"),
    [
        (
            {"train": 5, "val": 1},
            r"samples\.tars\.train 5: found .* 519750 .* of 10000; expected 52 to 53 tars",
        ),
        ({"train": 52, "val": 0}, r"samples\.tars\.val 0: .*expected 1 tars"),
    ],
)
def test_a_pinned_count_that_the_split_cannot_give_is_refused_before_anything_is_downloaded(tars, message):
    with pytest.raises(BuildError, match=message):
        plan_tars(samples(tars=tars), 2_133_334)


def test_a_pinned_count_that_the_split_may_give_is_believed():
    """Small sets scatter widely: 2 expected of 16 may be none or ten."""
    for val in (0, 1, 10):
        small = samples(total=16, validation_fraction=0.125, per_tar=1, tars={"train": 16 - val, "val": val})
        assert len(plan_tars(small, 16)) == 16
    whole = samples(total=16, validation_fraction=0, per_tar=10, tars={"train": 2, "val": 1})
    with pytest.raises(BuildError, match=r"samples\.tars\.val 1: .*expected 0 tars"):
        plan_tars(whole, 16)


def test_no_validation_split_means_no_val_tar():
    tars = plan_tars(samples(total=20_000, validation_fraction=0), 20_000)
    assert {tar.split for tar in tars} == {"train"} and len(tars) == 2


def test_more_samples_than_rows_is_refused():
    with pytest.raises(BuildError, match="found 100 rows in all pinned parquets"):
        plan_tars(samples(), 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns"),
        ("file rows bytes sha256\n", "separated by tabs"),
        ("file\trows\tbytes\tsha256\n", "no rows"),
        ("file\trows\tbytes\tsha256\na.parquet\tx\t1\t" + "0" * 64, "line 2: found rows 'x'"),
        ("file\trows\tbytes\tsha256\na.parquet\t0\t1\t" + "0" * 64, "positive numbers"),
        ("file\trows\tbytes\tsha256\na.parquet\t1\t1\tABC", "64 lowercase hex digits"),
        ("file\trows\tbytes\tsha256\n../a.parquet\t1\t1\t" + "0" * 64, "plain name"),
        ("file\trows\tbytes\tsha256\n" + ("a.parquet\t1\t1\t" + "0" * 64 + "\n") * 2, "twice"),
        ("file\trows\tbytes\tsha256\na.parquet\t1\t1", "64 lowercase hex digits"),
    ],
)
def test_malformed_pin_tables_are_refused(tmp_path, text, message):
    table = tmp_path / "pins.tsv"
    table.write_text(text)
    with pytest.raises(BuildError, match=message):
        read_pins(table)


def test_missing_pin_table_names_the_config_key(tmp_path):
    with pytest.raises(BuildError, match=r"no such file.*metadata\.pins"):
        read_pins(tmp_path / "absent.tsv")
