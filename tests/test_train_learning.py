"""Does a trained model caption held-out pictures better? The grading, and the rule that fails if not."""

from __future__ import annotations

import io
import json
import random

import pytest

from helpers import snakemake
from shardwright.errors import BuildError
from shardwright.training.grading import WHOLE, blind_guess, check_learned, grade, parse_facts
from train_world import import_tiny
from vlm_helpers import CHECKOUT, load_processor, make_encoder, make_sample, raw_sample, write_dataset

torch = pytest.importorskip("torch")

FACTS = parse_facts("colours=red blue;shapes=circle square")
CAPTIONS = {"red": "a red circle", "blue": "a blue square"}
CONFIG = str(CHECKOUT / "config/example/learning.yaml")


def test_right_and_wrong_captions_are_told_apart():
    """Whole captions by their words, a fact by its words in the reference's order."""
    captions = ["A red circle.", "a red circle, a blue square", "a blue square"]
    assert grade(captions, captions, FACTS) == {WHOLE: 3, "colours": 3, "shapes": 3}
    said = ["a  RED circle.", "a blue circle, a red square", "nothing"]
    assert grade(said, captions, FACTS) == {WHOLE: 1, "colours": 1, "shapes": 2}
    assert grade([""] * 3, captions, FACTS) == {WHOLE: 0, "colours": 0, "shapes": 0}
    with pytest.raises(ValueError, match="argument"):
        grade(said[:2], captions, FACTS)


def test_a_blind_guess_is_the_commonest_answer():
    train = ["a red circle", "a red circle", "a red square", "a blue square", "a blue square"]
    held_out = ["a red circle", "a red square", "a blue square"]
    assert blind_guess(train, held_out, FACTS) == {WHOLE: 1, "colours": 2, "shapes": 2}


@pytest.mark.parametrize(
    ("trained", "learned"),
    [((3, 9), True), ((2, 9), True), ((2, 8), False), ((0, 9), False), ((3, 1), False)],
)
def test_learned_is_more_than_the_base_and_than_guessing(trained, learned):
    """Equal to a guess is not learned; gaining one fact and losing another is not either."""
    facts = ("colours", "shapes")
    right = {"base": (1, 2), "blind": (2, 8), "trained": trained}
    right = {who: dict(zip(facts, counts, strict=True)) for who, counts in right.items()}
    if learned:
        check_learned(right, 31)
        return
    with pytest.raises(BuildError, match=rf"31 held-out pictures: .*colours: {trained[0]} \(base 1, blind 2"):
        check_learned(right, 31)


def picture(colour: str, seed: int) -> bytes:
    """A JPEG of one colour in a shade of its own."""
    from PIL import Image

    rng = random.Random(f"{colour} {seed}")
    strong, weak = rng.randint(170, 255), rng.randint(0, 60)
    stream = io.BytesIO()
    shade = (strong, weak, weak) if colour == "red" else (weak, weak, strong)
    Image.new("RGB", (48, 48), shade).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A dataset of red and blue pictures, the example's model imported, and its export: itself."""
    from shardwright.vlm.models import load_imported

    folder = tmp_path_factory.mktemp("learning")
    root = folder / "results/example"
    samples = [
        make_sample(number, CAPTIONS[colour], members={"image.jpg": picture(colour, number)})
        for number in range(24)
        for colour in [("red", "blue")[number % 2]]
    ]
    splits = {"train": samples[:16], "val": samples[16:]}
    write_dataset(root / "energon", {split: [part] for split, part in splits.items()})
    tars = [{"name": f"{split}-shard-000000.tar", "split": split} for split in splits]
    (root / "energon/manifest.json").write_text(json.dumps({"tars": tars}))
    import_tiny(root / "models/tiny")
    model, processor = load_imported(root / "models/tiny/import", torch.float32, torch.device("cpu"))
    merged = root / "train/learning/export/merged"
    model.save_pretrained(merged)
    processor.save_pretrained(merged)
    return folder, root, splits["train"], model


def test_an_untrained_model_fails_the_rule_and_its_answers_stay(world):
    """The export answers as the base does: the rule fails; no report, every answer beside it."""
    folder, root, *_ = world
    report = root / "train/learning/learning_check.json"
    options = ("learned", "--configfile", CONFIG, "--allowed-rules", "learned", "learning_check")
    done = snakemake(folder, *options, check=False)
    assert done.returncode == 1 and "captions of 8 held-out pictures: found right answers" in done.stdout
    assert not report.exists()
    evidence = json.loads(report.with_suffix(".evidence.json").read_text())
    assert evidence["num_pictures"] == len(evidence["answers"]) == 8
    assert evidence["right"]["base"] == evidence["right"]["trained"]
    assert {answer["caption"] for answer in evidence["answers"]} == set(CAPTIONS.values())
    assert all(answer["base"] == answer["trained"] for answer in evidence["answers"])


def test_a_model_that_has_learned_passes(world, tmp_path, capsys):
    """Some steps on 16 pictures: the program finds the captions of 8 others right, and says how many."""
    import learning_check

    _, root, train, model = world
    encoder = make_encoder()
    batch = encoder.batch([encoder.encode(raw_sample(sample)) for sample in train])
    inputs = {name: value for name, value in batch.items() if torch.is_tensor(value)}
    inputs.pop("num_supervised")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(0)
    for _ in range(40):
        loss = model(**inputs, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "merged")
    load_processor().save_pretrained(tmp_path / "merged")
    limits = json.dumps(vars(encoder.limits))
    report = tmp_path / "train/learning/learning_check.json"
    learning_check.main(
        [
            *("--manifest", str(root / "energon/manifest.json")),
            *("--import-report", str(root / "models/tiny/import.json")),
            *("--merged", str(tmp_path / "merged"), "--limits", limits, "--report", str(report)),
            *("--facts", "colours=red blue;shapes=circle square"),
        ]
    )
    right = json.loads(report.read_text())["right"]
    assert right["trained"]["colours"] == 8 and right["base"]["colours"] < 8
    assert "colours right, of 8 held-out pictures: base " in capsys.readouterr().out
