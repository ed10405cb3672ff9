"""What Snakemake plans without any data: the whole build, at once, in seconds."""

from __future__ import annotations

import re

from helpers import CHECKOUT, job_stats, snakemake

DATACOMP = ("--configfile", str(CHECKOUT / "config/datacomp.yaml"))


def test_the_reference_build_plans_right_without_data(tmp_path):
    stats = job_stats(snakemake(tmp_path, "-n", *DATACOMP).stdout)
    assert stats["fetch_metadata"] == 4
    assert stats["download_shard"] == stats["audit_shard"] == 216
    assert stats["convert_tar"] == 53
    assert stats["import_model"] == stats["train_model"] == stats["export_checkpoint"] == 1
    assert not (tmp_path / "results").exists()


def test_no_job_is_known_only_after_a_checkpoint():
    """R52: Snakemake's one checkpoint here makes it look again at the params of jobs that it knows already;
    nothing asks a checkpoint for its jobs, so none can be missed, and a deleted output is like any other."""
    rules = "\n".join(path.read_text() for path in sorted((CHECKOUT / "rules").glob("*.smk")))
    assert re.findall(r"^checkpoint (\w+):", rules, flags=re.MULTILINE) == ["select_samples"]
    assert "checkpoints." not in rules and "glob_wildcards" not in rules and ".glob(" not in rules


def test_the_rulegraph_draws_the_whole_way(tmp_path):
    drawn = snakemake(tmp_path, "--rulegraph", *DATACOMP).stdout
    names = set(re.findall(r'label ?= ?"(\w+)"', drawn))
    way = "fetch_metadata download_shard audit_shard audit_summary select_samples convert_tar index_dataset"
    end = "fetch_model import_model check_loader train_model export_checkpoint write_provenance write_report"
    assert names >= {*way.split(), *end.split()}


def test_every_rule_with_a_program_has_log_benchmark_digest_and_no_run(tmp_path):
    """The house rules that a reader would otherwise check by eye."""
    for path in sorted((CHECKOUT / "rules").glob("*.smk")):
        text = path.read_text()
        assert text.startswith('"""'), f"{path.name} has no docstring"
        assert len(text.splitlines()) <= 260, path.name
        for block in re.split(r"\n(?=(?:rule|checkpoint) \w+:)", text)[1:]:
            name = re.match(r"(?:rule|checkpoint) (\w+):", block)[1]
            assert "    run:" not in block, name
            if "shell:" in block and "output:" in block:
                for part in ("log:", "benchmark:", "resources:", "code=digest("):
                    assert part in block, f"rule {name} has no {part}"
