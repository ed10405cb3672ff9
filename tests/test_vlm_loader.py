"""The loader over real Energon datasets: every sample, in an order that can be resumed, drops counted."""

from __future__ import annotations

import itertools
import pickle
import shutil
import signal
from collections import Counter

import pytest

from shardwright.errors import BuildError
from vlm_helpers import conversation, limits, load_processor, make_sample, write_dataset

DEADLINE_S = 300  # a busy machine
NUM_TRAIN, NUM_VAL = 11, 3
BAD = {
    "undecodable_image": {"image.jpg": b"\xff\xd8 no picture"},
    "bad_conversation": {"conversation.json": b"{"},
    "empty_answer": {"conversation.json": conversation(" \n", "0" * 32)},
}


@pytest.fixture(autouse=True)
def deadline():
    """A loader that hangs fails its test (R27)."""

    def ring(*_):
        raise TimeoutError(f"still not done after {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def processor():
    import torch

    torch.set_num_threads(1)
    return load_processor()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """11 training samples in two tars, three of them bad; 3 validation samples in one tar."""
    samples = [make_sample(number, size=(32, 32)) for number in range(NUM_TRAIN)]
    for number, members in zip((2, 6, 9), BAD.values(), strict=True):
        samples[number] = make_sample(number, size=(32, 32), members=members)
    val = [make_sample(100 + number, size=(32, 32)) for number in range(NUM_VAL)]
    folder = tmp_path_factory.mktemp("data") / "energon"
    return write_dataset(folder, {"train": [samples[:6], samples[6:]], "val": [val]})


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """8 good training samples in one tar."""
    folder = tmp_path_factory.mktemp("clean") / "energon"
    return write_dataset(folder, {"train": [[make_sample(number, size=(32, 32)) for number in range(8)]]})


def open_loader(processor, dataset, split="train", kind=None, buffer=4, micro_batch_size=1, **changed):
    from shardwright.vlm.encoder import VLMTaskEncoder
    from shardwright.vlm.loader import build_loader

    asked = limits(shuffle_buffer_size=buffer, max_samples_per_sequence=3)
    encoder = (kind or VLMTaskEncoder)(processor, asked)
    changed.setdefault("repeat", split == "train")
    return build_loader(dataset, split, encoder, micro_batch_size=micro_batch_size, **changed)


def numbers(batches):
    return [int(uid, 16) for batch in batches for uid in batch["uids"]]


def told(batches):
    """What a resumed run must repeat: samples, order, values, counts."""
    return [
        (batch["uids"], batch["drops"], batch["input_ids"].tolist(), float(batch["pixel_values"].sum()))
        for batch in batches
    ]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (4, 0), (1, 2), (2, 2)])
def test_validation_reads_every_sample_once(processor, dataset, world_size, workers):
    """R27, R31: one tar, fewer samples than readers: each sample on one rank once, no rank hangs."""
    per_rank = [
        numbers(open_loader(processor, dataset, "val", rank=rank, world_size=world_size, num_workers=workers))
        for rank in range(world_size)
    ]
    assert sorted(itertools.chain(*per_rank)) == [100, 101, 102]


def test_last_validation_batch_is_short_not_lost(processor, dataset):
    """R27: batch 2 of 3 samples gives 2 and 1."""
    batches = list(open_loader(processor, dataset, "val", micro_batch_size=2))
    assert [len(batch["uids"]) for batch in batches] == [2, 1]
    assert [len(batch["num_supervised"]) for batch in batches] == [2, 1]


@pytest.mark.parametrize("buffer", [0, 3, 100])
def test_an_epoch_holds_every_sample_once(processor, clean, buffer):
    """R31: in training too, however large the shuffle buffer, over two ranks."""
    for epoch in range(3):
        seen = []
        for rank in range(2):
            loader = open_loader(processor, clean, buffer=buffer, rank=rank, world_size=2)
            seen += numbers(itertools.islice(loader, 4 * epoch, 4 * epoch + 4))
        assert sorted(seen) == list(range(8)), epoch


def test_order_follows_the_seed(processor, clean):
    first, again, other = (
        numbers(itertools.islice(open_loader(processor, clean, buffer=100, seed=seed), 16))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first[:8] != first[8:]


def test_resume_anywhere_without_workers(processor, dataset):
    """R33, R34: saved before the first batch, at any later one, and again right after a restore."""
    loader = open_loader(processor, dataset)
    states, batches, iterator = [pickle.dumps(loader.save_state_rank())], [], iter(loader)
    for _ in range(21):
        batches.append(next(iterator))
        states.append(pickle.dumps(loader.save_state_rank()))
    expected = told(batches)
    for cut in (0, 1, 7, 8, 9, 15):
        resumed = open_loader(processor, dataset)
        resumed.restore_state_rank(pickle.loads(states[cut]))
        resumed.restore_state_rank(pickle.loads(pickle.dumps(resumed.save_state_rank())))
        assert told(itertools.islice(resumed, 6)) == expected[cut : cut + 6], cut


def test_resume_with_two_workers(processor, dataset):
    """R33, R34: batches under way in worker processes are neither lost nor repeated."""
    loader = open_loader(processor, dataset, num_workers=2, micro_batch_size=2)
    states, batches, iterator = {0: pickle.dumps(loader.save_state_rank())}, [], iter(loader)
    for number in range(1, 13):
        batches.append(next(iterator))
        if number in (3, 9):
            states[number] = pickle.dumps(loader.save_state_rank())
    loader.close()
    expected = told(batches)
    for cut, state in states.items():
        resumed = open_loader(processor, dataset, num_workers=2, micro_batch_size=2)
        resumed.restore_state_rank(pickle.loads(state))
        assert told(itertools.islice(resumed, 12 - cut)) == expected[cut:], cut
        resumed.close()


@pytest.mark.parametrize(
    "changed", [{"world_size": 2}, {"num_workers": 1}, {"micro_batch_size": 2}, {"seed": 5}]
)
def test_state_of_another_reader_is_refused(processor, dataset, changed):
    """R34: another number of ranks × workers would silently read other samples."""
    state = open_loader(processor, dataset).save_state_rank()
    with pytest.raises(BuildError, match=f"{next(iter(changed))} ") as caught:
        open_loader(processor, dataset, **changed).restore_state_rank(state)
    assert str(next(iter(changed.values()))) in caught.value.expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_costs_only_itself(processor, dataset, workers):
    """R21: in a batch of 4 the neighbours of a bad sample stay; each drop is counted once, with its uid."""
    loader = open_loader(processor, dataset, repeat=False, micro_batch_size=4, num_workers=workers)
    batches = list(loader)
    assert sorted(numbers(batches)) == [0, 1, 3, 4, 5, 7, 8, 10]
    assert loader.drops == Counter(dict.fromkeys(BAD, 1))


def test_drops_travel_with_their_uids(processor, dataset):
    """R21: over one epoch of two workers, batches tell which sample fell by which rule."""
    loader = open_loader(processor, dataset, num_workers=2)
    dropped = {pair for batch in itertools.islice(loader, 20) for pair in map(tuple, batch["dropped"])}
    assert {(int(uid[-32:], 16), reason) for uid, reason in dropped} == set(zip((2, 6, 9), BAD, strict=True))


def test_an_unforeseen_error_is_counted(processor, clean):
    """R21: what Energon would swallow with a traceback counts as loader_error."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    class Breaks(VLMTaskEncoder):
        def encode(self, raw):
            if raw.__key__.endswith("3"):
                raise KeyError("unforeseen")
            return super().encode(raw)

    loader = open_loader(processor, clean, kind=Breaks, repeat=False, micro_batch_size=4)
    assert sorted(numbers(loader)) == [0, 1, 2, 4, 5, 6, 7]
    assert loader.drops == {"loader_error": 1}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_lost_batch_ends_the_run(processor, clean, workers):
    """R21: Energon would drop all samples of the batch and carry on."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    class Breaks(VLMTaskEncoder):
        def counted(self):
            raise KeyError("unforeseen")

    loader = open_loader(processor, clean, kind=Breaks, num_workers=workers)
    with pytest.raises(BuildError, match=r"whole batch failed.*unforeseen"):
        next(iter(loader))


def test_nothing_but_bad_samples_ends(processor, tmp_path):
    """R21, R41: an endless read of samples that all fall stops with the rule's name."""
    samples = [make_sample(number, members=BAD["bad_conversation"]) for number in range(4)]
    dataset = write_dataset(tmp_path / "energon", {"train": [samples]})
    with pytest.raises(BuildError, match=r"in a row dropped.*bad_conversation"):
        next(iter(open_loader(processor, dataset)))


def test_one_torch_thread_a_worker(processor, clean):
    """A worker that takes every core for itself makes all of them slower."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    class Tells(VLMTaskEncoder):
        def batch(self, samples):
            import torch

            return super().batch(samples) | {"num_threads": torch.get_num_threads()}

    batch = next(iter(open_loader(processor, clean, kind=Tells, num_workers=1)))
    assert batch["num_threads"] == 1


def test_too_few_samples_for_the_readers(processor, clean):
    """R27: 8 samples cannot feed 3 ranks × 3 workers for ever."""
    with pytest.raises(BuildError, match=r"8 samples.*3 ranks × 3 workers"):
        open_loader(processor, clean, world_size=3, num_workers=3)


def test_empty_split_is_refused(processor, clean):
    """R31: no val split in this dataset."""
    with pytest.raises(BuildError, match="split val"):
        open_loader(processor, clean, "val")


@pytest.mark.parametrize("name", [".info.json", "split.yaml", "index.sqlite", "shardwright.yaml"])
def test_missing_metadata_is_named(processor, clean, tmp_path, name):
    """R32: any missing file of .nv-meta stops before the first batch."""
    dataset = shutil.copytree(clean, tmp_path / "energon")
    (dataset / ".nv-meta" / name).unlink()
    with pytest.raises(BuildError, match=name):
        open_loader(processor, dataset)


def test_metadata_of_another_energon_is_refused(processor, clean, tmp_path):
    """R32: version 7 dropped and added sample fields."""
    dataset = shutil.copytree(clean, tmp_path / "energon")
    info = dataset / ".nv-meta/.info.json"
    info.write_text(info.read_text().replace('"energon_version": "7', '"energon_version": "6'))
    with pytest.raises(BuildError, match="Energon 6"):
        open_loader(processor, dataset)


def test_a_value_that_torch_refuses_is_not_laid_to_the_dataset(processor, clean):
    """Building the dataset again would cost hours and change nothing."""
    from shardwright.vlm.encoder import VLMTaskEncoder

    class Breaks(VLMTaskEncoder):
        def counted(self):
            raise ValueError("unforeseen")

    loader = open_loader(processor, clean, kind=Breaks)
    with pytest.raises(BuildError, match="unforeseen") as caught:
        next(iter(loader))
    assert "dataset` again" not in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_tar_changed_after_indexing_is_an_error(processor, clean, tmp_path, damage):
    """A tar cut short or gone ends the read with advice, not a traceback."""
    dataset = shutil.copytree(clean, tmp_path / "energon")
    [tar] = dataset.glob("*.tar")
    if damage == "cut":
        tar.write_bytes(tar.read_bytes()[:4000])
    else:
        tar.unlink()
    with pytest.raises(BuildError, match="target `dataset` again"):
        list(itertools.islice(open_loader(processor, dataset), 8))
