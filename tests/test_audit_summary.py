"""Sums, gates, warnings, the verdict; and the audit rules through Snakemake."""

from __future__ import annotations

import json

import pytest

from audit_helpers import audit, small_photos, small_shard, write_config
from helpers import jobs_by_rule, run_program, snakemake
from raw_shards import make_rows, spoil, write_shard
from shardwright import verdicts
from shardwright.audit_advice import (
    SUSPECTS,
    dominance_warnings,
    failure_rows,
    failures_tsv,
    picture_warnings,
)
from shardwright.audit_gates import Requirements, low_shard_warnings, summarise
from shardwright.audit_plots import write_plots
from shardwright.audit_totals import sum_reports
from shardwright.errors import BuildError


def make_totals(usable=62, failures=None, attempts=100, missing=(), **drops):
    failures = {"http_4xx 404": attempts - usable - sum(drops.values())} if failures is None else failures
    return {
        "attempts": attempts,
        "successes": usable + sum(drops.values()),
        "failures": failures,
        "verdicts": dict.fromkeys(verdicts.AUDIT_VERDICTS, 0) | {"keep": usable} | drops,
        "samples": usable + sum(drops.values()),
        "counts": dict.fromkeys(SUSPECTS, 0),
        "repeated_images": {"extra_samples": 0, "top": {}},
        "num_shards": 2,
        "missing_shards": list(missing),
        "lowest_shards": [{"shard": "00000000", "attempts": 50, "successes": 31, "usable": 31}],
        "content_sha256": "0" * 64,
    }


def test_sums_are_those_of_the_shards(tmp_path):
    """Each count of the totals is the sum over the shards; nothing is counted twice or lost."""
    reports = [audit(small_shard(tmp_path, shard))[0] for shard in range(3)]
    totals = sum_reports(tmp_path / "audit", 3)
    assert totals["attempts"] == 120 == totals["successes"] + sum(totals["failures"].values())
    assert totals["samples"] == sum(totals["verdicts"].values()) == sum(r["samples"] for r in reports)
    assert totals["members"] == 3 * totals["samples"]
    for name in ("jpg_bytes", "face_boxes"):
        assert totals["counts"][name] == sum(report["counts"][name] for report in reports)
    for name, histogram in totals["histograms"].items():
        assert sum(histogram["counts"]) == totals["verdicts"]["keep"], name
    assert totals["missing_shards"] == []


def test_one_picture_in_many_shards_is_found(tmp_path):
    """R06: 50 URLs served the same bytes; the totals name the digest and how often it stands."""
    for shard in range(2):
        samples, _ = make_rows(shard, 25, photos=small_photos()[:1], distinct=False)
        audit(write_shard(tmp_path / "raw", shard, samples), 25)
    repeated = sum_reports(tmp_path / "audit", 2)["repeated_images"]
    assert list(repeated["top"].values()) == [50]


def test_a_missing_shard_fails_its_gate(tmp_path):
    audit(small_shard(tmp_path, 0))
    totals = sum_reports(tmp_path / "audit", 3)
    assert totals["missing_shards"] == ["00000001", "00000002"]
    gates = {gate["name"]: gate for gate in summarise(totals, Requirements(rows=120, total=1))["gates"]}
    assert not gates["shards"]["passed"]
    assert gates["shards"]["found"] == "1 audited shards (without 00000001, 00000002)"
    assert not gates["attempts"]["passed"]
    assert gates["usable"]["passed"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 0, "shard": "00000000"}', '{"format": 1, "shard": "7"}']
)
def test_a_report_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "00000000.json").write_text(text)
    with pytest.raises(BuildError, match=r"00000000\.json: found .*; expected format 1, shard 00000000"):
        sum_reports(tmp_path, 1)


def test_the_verdict_is_one_plain_sentence():
    """R13: users cannot tell what is normal."""
    required = Requirements(rows=2_133_334, total=525_000, usual_percent="50-75")
    totals = make_totals(usable=1_326_942, attempts=2_133_334)
    assert summarise(totals, required)["verdict"] == (
        "62.2 % of 2,133,334 URLs usable, within the 50 to 75 % that is usual for this set; "
        "525,000 needed, at most 1,326,942 there"
    )
    assert summarise(totals, required)["passed"]


@pytest.mark.parametrize(
    ("usable", "usual", "text"),
    [
        (40, "50-75", ", below the 50 to 75 %"),
        (80, "50-75", ", above the 50 to 75 %"),
        (60, "", "URLs usable; "),
    ],
)
def test_the_verdict_says_what_is_usual(usable, usual, text):
    summary = summarise(make_totals(usable), Requirements(100, 10, usual))
    assert text in summary["verdict"]
    assert bool(summary["warnings"] and "fewer URLs" in summary["warnings"][0]) == (", below" in text)


def test_a_shortfall_says_what_would_mend_it():
    """R12: retry what is transient, or pin more, or ask for less; each with its number."""
    totals = make_totals(usable=50, failures={"dns": 20, "http_4xx 404": 10, "timeout": 15, "tls": 5})
    gate = summarise(totals, Requirements(100, 60))["gates"][-1]
    assert not gate["passed"]
    assert gate["found"] == "at most 50 usable samples (duplicates are found later)"
    assert gate["expected"] == "at least 60 (samples.total)"
    assert "35 failures are transient" in gate["next_step"]
    assert "about 20 more URLs" in gate["next_step"]
    assert "lower samples.total to 50 or less" in gate["next_step"]
    nothing = summarise(make_totals(usable=0, failures={"tls": 100}), Requirements(100, 60))["gates"][-1]
    assert nothing["next_step"] == "look at the failure table: no URL at all was usable"


@pytest.mark.parametrize(
    ("failures", "warnings"),
    [
        ({"dns": 30, "http_4xx 404": 10}, ["dns is 75 % of all failures: the resolver may be overloaded"]),
        (
            {"http_4xx 403": 30, "dns": 2},
            ["http_4xx is 94 %", "http_4xx 403 is 94 %"],
        ),
        ({"http_4xx 403": 10, "http_4xx 404": 10, "dns": 10, "tls": 10}, ["http_4xx is 50 %"]),
        ({"http_4xx 403": 10, "http_5xx 500": 10, "dns": 10, "tls": 10}, []),
        ({"dns": 1}, []),
    ],
)
def test_a_class_or_code_that_dominates_is_named(failures, warnings):
    """R13, R15: an overloaded resolver, a stale user agent, a proxy that blocks."""
    totals = make_totals(usable=100 - sum(failures.values()), failures=failures)
    found = dominance_warnings(totals, 0.5)
    assert len(found) == len(warnings)
    for line, start in zip(found, warnings, strict=True):
        assert line.startswith(start)


def test_a_shard_far_below_the_others_is_named():
    """R12: an outage during one shard."""
    totals = make_totals(usable=60)
    assert low_shard_warnings(totals) == []
    totals["lowest_shards"].insert(0, {"shard": "00000001", "attempts": 50, "successes": 9, "usable": 9})
    assert low_shard_warnings(totals) == [
        "shard 00000001: 9 of 50 URLs usable, less than half of the share of the whole set"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("near_constant", "show next to nothing"),
        ("sideways", "lie on their side"),
        ("unclean_captions", "have captions with control characters or chat tokens"),
    ],
)
def test_suspect_pictures_are_warned_of(name, text):
    """S01, S16, R20: white pictures with real captions; pictures stored on their side."""
    totals = make_totals(usable=1000, attempts=1000)
    totals["counts"][name] = 4
    assert picture_warnings(totals) == []
    totals["counts"][name] = 50
    assert [line.startswith(f"50 pictures {text}") for line in picture_warnings(totals)] == [True]


def test_a_placeholder_is_named_with_its_digest():
    """R06: so that samples.exclude can take it."""
    totals = make_totals(usable=1000, attempts=1000)
    totals["repeated_images"]["top"] = {"a" * 64: 40, "b" * 64: 3}
    (line,) = picture_warnings(totals)
    assert line.startswith("one picture stands 40 times or more") and "a" * 64 in line
    totals["repeated_images"]["top"] = {"b" * 64: 3}
    assert picture_warnings(totals) == []


def test_the_failure_table_lists_every_lost_url():
    """Counts of the table and the usable samples together are the URLs."""
    totals = make_totals(usable=50, failures={"dns": 20, "http_4xx 404": 15, "http_4xx 403": 5}, bad_jpeg=10)
    rows = failure_rows(totals)
    assert sum(row["count"] for row in rows) + 50 == 100
    assert [row["count"] for row in rows] == [20, 15, 10, 5]
    lines = failures_tsv(totals).splitlines()
    assert lines[0].split("\t")[:6] == ["stage", "reason", "code", "count", "percent_of_urls", "transient"]
    assert lines[1].split("\t")[:6] == ["download", "dns", "", "20", "20.00", "yes"]
    assert lines[2].split("\t")[:6] == ["download", "http_4xx", "404", "15", "15.00", "no"]
    assert lines[3].split("\t")[:6] == ["audit", "bad_jpeg", "", "10", "10.00", "no"]
    assert all(len(line.split("\t")) == 8 and line.split("\t")[7] for line in lines)


def test_plots_are_the_same_bytes_for_the_same_totals(tmp_path):
    audit(small_shard(tmp_path, 0))
    totals = sum_reports(tmp_path / "audit", 1)
    drawn = []
    for run in ("first", "second"):
        outcomes, shapes = tmp_path / run / "outcomes.svg", tmp_path / run / "shapes.svg"
        write_plots(totals, outcomes, shapes)
        drawn.append((outcomes.read_bytes(), shapes.read_bytes()))
    assert drawn[0] == drawn[1]
    assert "What became of 40 URLs" in drawn[0][0].decode()
    assert f"{totals['verdicts']['keep']:,}" in drawn[0][0].decode()


def test_the_program_fails_after_it_said_what_it_found(tmp_path):
    totals = tmp_path / "audit/totals.json"
    totals.parent.mkdir()
    totals.write_text(json.dumps(make_totals(usable=50, failures={"dns": 50})))
    options = ("--totals", totals, "--rows", 100, "--summary", tmp_path / "audit/summary.json")
    failed = run_program("audit_summary", *options, "--total", 60, check=False)
    assert failed.returncode == 1
    assert failed.stdout.startswith(
        "verdict: 50.0 % of 100 URLs usable; 60 needed, at most 50 there\nwarning: dns is 100"
    )
    assert "found at most 50 usable samples" in failed.stdout
    assert f"What failed and why: {totals.parent / 'failures.tsv'}" in failed.stdout
    assert not (tmp_path / "audit/summary.json").exists()
    run_program("audit_summary", *options, "--total", 50)
    assert json.loads((tmp_path / "audit/summary.json").read_text())["passed"]


def _two_shards(folder, replaced=False):
    for shard in range(2):
        samples, failures = make_rows(shard, 30, photos=small_photos(), failure_rate=0.3, rows_per_shard=30)
        if replaced and shard == 1:
            spoil(samples[2], verdicts.BAD_JPEG)
        if not replaced or shard == 1:
            write_shard(folder / "raw", shard, samples, failures)


def test_rules(tmp_path):
    """Through Snakemake: a failed gate keeps its evidence; a changed shard reruns its own audit alone."""
    root = tmp_path / "results/t"
    _two_shards(root)
    rules = ("audit_shard", "audit_totals", "plot_audit", "audit_summary")
    command = ("audit", "--allowed-rules", "audit", *rules, "--configfile")

    failed = snakemake(
        tmp_path, *command, write_config(tmp_path, rows=60, per_shard=30, total=50), check=False
    )
    assert failed.returncode == 1
    assert "expected at least 50 (samples.total)" in failed.stdout
    assert jobs_by_rule(failed.stdout)["audit_shard"] == 2
    for name in ("totals.json", "failures.tsv", "outcomes.svg", "shapes.svg"):
        assert (root / "audit" / name).is_file(), name
    assert not (root / "audit/summary.json").exists()
    pictures = (root / "audit/outcomes.svg").read_bytes()
    assert b"What became of 60 URLs" in pictures

    config = write_config(tmp_path, rows=60, per_shard=30, total=30)
    passed = snakemake(tmp_path, *command, config)
    assert jobs_by_rule(passed.stdout) == {"audit_summary": 1, "audit": 1}
    assert json.loads((root / "audit/summary.json").read_text())["passed"]

    tar = root / "raw/00000001.tar"
    tar.write_bytes(tar.read_bytes()[:-20_000])
    cut = snakemake(tmp_path, *command, config, check=False)
    assert cut.returncode == 1
    assert f"error: {tar.relative_to(tmp_path)} byte" in cut.stdout
    assert "the shard is downloaded anew" in cut.stdout
    assert not (root / "audit/00000001.json").exists()

    _two_shards(root, replaced=True)
    again = snakemake(tmp_path, *command, config)
    assert jobs_by_rule(again.stdout) == {**dict.fromkeys((*rules, "audit"), 1)}
    assert "wildcards: shard=00000001" in again.stdout
    assert json.loads((root / "audit/totals.json").read_text())["verdicts"][verdicts.BAD_JPEG] == 1
