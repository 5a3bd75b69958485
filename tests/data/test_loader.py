"""Batches and augmentation: fixed by the seed, the same from any step, from any place, in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resolvent.data import CropFlip, Loader, Split
from resolvent.data.augment import hash_index
from resolvent.data.order import fold, mix_bits, shuffle


def numbered(n: int, packed: int | None = None) -> Split:
    x = torch.arange(n)[:, None, None].expand(n, 4, 1)
    return Split(x.to(torch.uint8) if packed else x.float(), torch.arange(n), torch.arange(n) % 4 + 1, packed)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_an_epoch_has_every_sample_once(n: int, batch: int, seed: int) -> None:
    loader = Loader(numbered(n), batch, seed)
    for epoch in range(2):
        seen = [loader.at(epoch * len(loader) + i) for i in range(len(loader))]
        index = torch.cat([samples.index for samples in seen])
        assert index.tolist() == shuffle(n, seed, epoch).tolist()
        assert {samples.epoch for samples in seen} == {epoch}
        for samples in seen:
            assert samples.x[:, 0, 0].long().equal(samples.index)
            assert samples.y.equal(samples.index)
            assert samples.lengths is not None
            assert samples.lengths.equal(samples.index % 4 + 1)


def test_any_step_can_come_first() -> None:
    through = list(Loader(numbered(30), 8, 3).batches(0, 12))
    resumed = list(Loader(numbered(30), 8, 3).batches(7, 12))
    for a, b in zip(through[7:], resumed, strict=True):
        assert a.index.equal(b.index)
        assert a.x.equal(b.x)


def test_a_packed_split_gives_the_same_batches() -> None:
    plain = numbered(30)
    plain = Split(plain.x / 255, plain.y, plain.lengths)
    for a, b in zip(Loader(plain, 8, 1).batches(0, 8), Loader(numbered(30, 255), 8, 1).batches(0, 8), strict=True):
        assert a.x.equal(b.x)
        assert b.x.dtype == torch.float32


def test_packed_tokens_come_as_int64() -> None:
    split = Split(torch.arange(12, dtype=torch.int16).reshape(3, 4), torch.zeros(3), None, 0)
    assert split.select(torch.tensor([1])).x.dtype == torch.int64
    assert split.unpack().x.dtype == torch.int64
    assert split.to("cpu").x.dtype == torch.int16


def test_a_split_that_does_not_fit_is_sent_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path for large sets, with the meta device in the place of one without room."""
    import resolvent.data.loader as home

    monkeypatch.setattr(home, "fits", lambda split, device: False)
    monkeypatch.setattr(Loader, "_send", lambda self, value: value)
    loader = Loader(numbered(30), 8, 3, device="meta")
    assert not loader.resident
    want = Loader(numbered(30), 8, 3)
    for step in (0, 1, 2, 7, 8, 3, 4):
        assert loader.at(step).index.equal(want.at(step).index)
        assert loader.at(step).x.equal(want.at(step).x)


def test_what_cannot_be_loaded_is_refused() -> None:
    with pytest.raises(ValueError, match="batch size of 1 or more"):
        Loader(numbered(3), 0)
    with pytest.raises(ValueError, match="got 0, 4"):
        Loader(numbered(0), 4)


# -- augmentation ------------------------------------------------------------------------------------------------------


def reference(x: np.ndarray, top: int, left: int, mirror: bool, pad: int) -> np.ndarray:
    """One image (side, side, c) by slices."""
    side = x.shape[0]
    framed = np.zeros((side + 2 * pad, side + 2 * pad, x.shape[2]), x.dtype)
    framed[pad : pad + side, pad : pad + side] = x
    cut = framed[top : top + side, left : left + side]
    return cut[:, ::-1] if mirror else cut


@pytest.mark.parametrize("layout", ["pixels", "planes"])
def test_crop_and_mirror_equal_slices(layout: str) -> None:
    images = np.random.default_rng(0).random((20, 8, 8, 3)).astype(np.float32)
    turned = images.transpose(0, 3, 1, 2) if layout == "planes" else images
    x = torch.from_numpy(turned.reshape(20, 64, 3).copy())
    change = CropFlip(8, 2, layout)  # type: ignore[arg-type]
    index = torch.arange(20)
    got = change(x, index, 5)
    for i, (top, left, mirror) in enumerate(zip(*(c.tolist() for c in change.choices(index, 5)), strict=True)):
        want = reference(images[i], top, left, mirror, 2)
        want = want.transpose(2, 0, 1) if layout == "planes" else want
        assert np.array_equal(got[i].numpy(), want.reshape(64, 3))


def test_choices_are_uniform_and_belong_to_the_sample() -> None:
    change = CropFlip()
    index = torch.arange(20_000)
    top, left, mirror = change.choices(index, fold(1, 2))
    for places in (top, left):
        counts = torch.bincount(places, minlength=9)
        assert len(counts) == 9
        assert float((counts / 20_000 - 1 / 9).abs().max()) < 0.01
    assert abs(float(mirror.double().mean()) - 0.5) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([top, left]).double())[0, 1])) < 0.03
    some = torch.tensor([17, 3, 19_999])
    assert change.choices(some, fold(1, 2))[0].equal(top[some])
    assert not change.choices(index, fold(1, 3))[0].equal(top)


def test_the_hash_on_tensors_is_that_on_arrays() -> None:
    seed = fold(9)
    with np.errstate(over="ignore"):
        want = mix_bits(mix_bits(np.arange(100, dtype=np.uint64)) + np.uint64(seed))
    assert hash_index(torch.arange(100), seed).numpy().view(np.uint64).tolist() == want.tolist()


def test_the_loader_varies_samples_by_epoch() -> None:
    split = Split(torch.rand(10, 64, 1), torch.zeros(10, dtype=torch.long))
    loader = Loader(split, 10, 0, augment=CropFlip(8, 2))
    first, second = loader.at(0), loader.at(1)
    assert not first.x[first.index.argsort()].equal(second.x[second.index.argsort()])
    assert loader.at(0).x.equal(first.x)
    small = Loader(split, 3, 0, augment=CropFlip(8, 2))
    parts = [small.at(i) for i in range(4)]
    assert torch.cat([p.x for p in parts]).equal(first.x)  # whatever the batch around a sample
