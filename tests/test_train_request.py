"""What a run is asked for: its state, its settings, and the check at its end."""

from __future__ import annotations

import pytest

from shardwright.errors import BuildError
from train_helpers import settings


def test_a_changed_setting_never_resumes_another_runs_state(tmp_path, capsys):
    """A new learning rate gets a state of its own, the old one is kept and the difference told."""
    from shardwright.training.config import Request, open_state

    first = open_state(tmp_path, Request(settings(), {"manifest_sha256": "a"}), "code1")
    (first / "step-00000002").mkdir()
    free = open_state(
        tmp_path, Request(settings(log_every=5, keep_last=9), {"manifest_sha256": "a"}), "code1"
    )
    assert free == first
    capsys.readouterr()
    other = open_state(tmp_path, Request(settings(learning_rate=0.5), {"manifest_sha256": "a"}), "code1")
    assert other != first and (first / "step-00000002").exists()
    assert "settings.learning_rate: 0.01 → 0.5" in capsys.readouterr().out
    assert open_state(tmp_path, Request(settings(), {"manifest_sha256": "b"}), "code1") not in (first, other)


def test_a_finished_state_is_used_again_only_by_the_program_that_made_it(tmp_path):
    """An edit of the training program rebuilds the run; an unfinished state is resumed in any case."""
    from shardwright.training.config import Request, open_state
    from shardwright.training.publish import mark_finished

    request = Request(settings(), {})
    folder = open_state(tmp_path, request, "code1")
    (folder / "step-00000006").mkdir()
    assert list(open_state(tmp_path, request, "code2").glob("step-*"))
    mark_finished(folder, "code1")
    assert list(open_state(tmp_path, request, "code1").glob("step-*"))
    assert not list(open_state(tmp_path, request, "code2").glob("step-*"))
    assert list(tmp_path.glob("*-code-code1/step-*"))


def test_differences_between_asked_and_run_are_an_error():
    from shardwright.training.config import check_observed

    check_observed({"steps": 3, "data": {"path": "a"}}, {"steps": 3, "data": {"path": "a"}})
    with pytest.raises(BuildError, match=r"data.path: a → b; steps: 3 → 2"):
        check_observed({"steps": 3, "data": {"path": "a"}}, {"steps": 2, "data": {"path": "b"}})


def test_a_loader_that_read_otherwise_than_asked_fails_the_run():
    """What each rank's loader says of itself is held against the settings at the end."""
    from shardwright.training.publish import check_run

    records = [{"kind": "train", "step": step, "num_samples": 4} for step in (1, 2)]
    asked = settings(steps=2) | {"readers": [{"rank": 0, "seed": 0}]}
    check_run(asked, {"readers": [{"rank": 0, "seed": 0}]}, records)
    with pytest.raises(BuildError, match=r"readers: .*'seed': 0.* → .*'seed': 1"):
        check_run(asked, {"readers": [{"rank": 0, "seed": 1}]}, records)


def test_too_few_samples_or_no_val_split_are_told_before_anything_is_loaded():
    from shardwright.training.setup import check_sample_counts

    check_sample_counts({"train": 4, "val": 0}, settings(ranks_per_node=2, loader_workers=2))
    with pytest.raises(
        BuildError, match=r"found 3 samples; expected at least 4, one for each of 2 ranks × 2"
    ):
        check_sample_counts({"train": 3, "val": 1}, settings(ranks_per_node=2, loader_workers=2))
    with pytest.raises(BuildError, match=r"the val split: found no samples"):
        check_sample_counts({"train": 3, "val": 0}, settings(validation_every=1))


def test_nested_adapter_names_lead_to_the_base():
    """peft nests one base_layer for each fused parameter; every one has to go."""
    from shardwright.training.loading import base_name

    nested = "base_model.model.model.mlp.experts.base_layer.base_layer.gate_up_proj"
    assert base_name(nested) == "model.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(("before", "now"), [([0, 2, 4, 6], 4), ([0, 5, 6], 5), ([0, 3, 6], 0), ([6], 5)])
def test_another_validation_cadence_on_resume_does_not_fail_the_finished_run(before, now):
    from shardwright.training.publish import check_run

    records = [{"kind": "train", "step": step, "num_samples": 4} for step in range(1, 7)]
    records += [{"kind": "validation", "step": step} for step in before]
    check_run(settings(validation_every=now), {}, records)
    with pytest.raises(BuildError, match="last_validation: 6 → 3"):
        check_run(
            settings(validation_every=3),
            {},
            [r for r in records if r["kind"] == "train"] + [{"kind": "validation", "step": 3}],
        )


def test_settings_that_alter_no_weight_are_not_among_the_deciding():
    from shardwright.training.batching import deciding

    free = settings(log_every=3, tensorboard=True, learning_facts="a=b", nodes=2)
    assert deciding(free) == deciding(settings())
    assert deciding(settings(learning_rate=0.5)) != deciding(settings())
