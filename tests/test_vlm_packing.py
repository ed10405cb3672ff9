"""Packed samples are as far apart as unpacked ones: losses, gradients, logits, positions (R35 to R37)."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from shardwright.errors import BuildError
from shardwright.vlm.packing import check_can_pack, check_isolation, sample_positions
from train_helpers import tiny_model
from vlm_helpers import MODEL, make_encoder, make_sample, raw_sample

CPU = torch.device("cpu")
SIZES = [(64, 48), (96, 32), (40, 120)]


def load_model(attention: str = "sdpa"):
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(MODEL, attn_implementation=attention).eval()


def encoded_samples(encoder, first: int = 1):
    return [encoder.encode(raw_sample(make_sample(first + n, size=size))) for n, size in enumerate(SIZES)]


def forward(model, batch):
    """As the training loop calls it: without a cache, which would switch the finding of packs off."""
    skipped = ("labels", "num_supervised")
    inputs = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) and k not in skipped}
    return model(**inputs, use_cache=False).logits


def loss_and_gradients(model, batch):
    model.zero_grad()
    logits = forward(model, batch)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="mean")
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_loss_and_gradients_equal_unpacked(attention):
    """R35: three samples of different pictures: loss and every gradient within 1e-5 of the padded batch."""
    model = load_model(attention)
    rows, packs = make_encoder(), make_encoder(pack=True)
    padded, packed = rows.batch(encoded_samples(rows)), packs.batch(encoded_samples(packs))
    assert packed["input_ids"].shape == (1, int(padded["attention_mask"].sum()))
    loss, gradients = loss_and_gradients(model, padded)
    packed_loss, packed_gradients = loss_and_gradients(model, packed)
    assert abs(loss - packed_loss) < 1e-5
    assert gradients.keys() == packed_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_a_changed_neighbour_moves_no_logit():
    """R37: another picture and caption in the first sample leave the second's logits as they were."""
    model, encoder = load_model(), make_encoder(pack=True)
    first, second, third = encoded_samples(encoder)
    other = encoder.encode(raw_sample(make_sample(77, "a table", size=(128, 128))))
    length = len(second.input_ids)
    with torch.no_grad():
        before = forward(model, encoder.batch([first, second, third]))
        after = forward(model, encoder.batch([other, second, third]))
    moved = before[0, len(first.input_ids) :] - after[0, len(other.input_ids) :]
    assert moved.shape[0] == length + len(third.input_ids)
    assert float(moved.abs().max()) < 1e-5


def test_positions_are_the_model_s_own():
    """R35: each sample's three axes are those that the model computes for it alone."""
    model, encoder = load_model(), make_encoder()
    for sample in encoded_samples(encoder):
        grids = sample.visual["image_grid_thw"]
        own, _ = model.model.get_rope_index(
            sample.input_ids[None], sample.mm_token_type_ids[None], image_grid_thw=grids
        )
        ours = sample_positions(sample.mm_token_type_ids, grids[:, 1:].tolist(), 2)
        assert torch.equal(ours[1:], own[:, 0])
        assert ours[0].tolist() == list(range(len(sample.input_ids)))


def test_no_token_is_asked_for_by_the_sample_before():
    """The labels of a pack, shifted by one, supervise each sample's own tokens and nothing else."""
    encoder = make_encoder(pack=True)
    samples = encoded_samples(encoder)
    batch = encoder.batch(samples)
    starts = torch.cumsum(torch.tensor([len(sample.input_ids) for sample in samples]), 0)[:-1]
    assert (batch["labels"][0, starts] == -100).all()
    assert int((batch["labels"][:, 1:] != -100).sum()) == int(batch["num_supervised"].sum())


@pytest.mark.parametrize("kind", ["Qwen3VL", "Qwen3VLMoe"])
def test_isolation_is_tried_on_the_model_itself(kind):
    """The test at start passes on dense and mixture-of-experts models."""
    found = check_isolation(tiny_model(kind).eval(), CPU)
    assert found["leak"] < 1e-6
    assert found["parity"] < 1e-4


def test_isolation_is_tried_inside_adapters_and_ddp():
    """The test at start takes the model as training calls it: with LoRA, inside DDP."""
    import torch.distributed as dist
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = check_isolation(torch.nn.parallel.DistributedDataParallel(model), CPU)
    finally:
        dist.destroy_process_group()
    assert found["leak"] < 1e-6
    assert model.training


def test_a_leak_is_noticed(monkeypatch):
    """R36, R37: where transformers does not see the samples of a row, the run is refused."""
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    with pytest.raises(
        BuildError, match=r"packing: found logits of a sample that move by .* Next: set train"
    ):
        check_isolation(load_model(), CPU)


def test_packing_is_refused_where_it_cannot_be():
    """Micro batch 1, layers with a state (Qwen3.6), an attention nobody proved: refused, with the reason."""
    from transformers import Qwen3_5MoeConfig

    model = load_model()
    check_can_pack(model.config, 2)
    with pytest.raises(BuildError, match=r"true with train.micro_batch_size 1"):
        check_can_pack(model.config, 1)
    with pytest.raises(BuildError, match="linear_attention, which carry a state from one sample"):
        check_can_pack(Qwen3_5MoeConfig(), 2)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(BuildError, match="attention implementation flex_attention"):
        check_can_pack(model.config, 2)
