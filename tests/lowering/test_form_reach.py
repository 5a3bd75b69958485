"""Up to which length a CPU runs the lowered form, and that attacks find there what they find through the modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import APGD, FAB, Draws, Square, Threat, autoattack, targeted_dlr
from resolvent.blocks.block import Block
from resolvent.lowering import lowered
from resolvent.models import build_model
from resolvent.models.config import AdSConfig, ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import DSSConfig, LayerConfig, S4Config, S4DConfig, S5Config
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use
from resolvent.training import trades
from resolvent.training.step.batch import Batch

pytest.importorskip("numba")


def model_of(layer: LayerConfig, mixer: Any = "linear", dtype: torch.dtype = torch.float32, **more: Any) -> Model:
    torch.manual_seed(0)
    block = ResidualConfig(layer, mixer=mixer, activation="gelu")
    settings: ModelConfig = replace(robustness("s4"), d_model=5, layers=2, input=ChannelsConfig(1), block=block, **more)
    model = build_model(replace(settings, head=ClassifierConfig(4))).to(dtype).eval()
    assert isinstance(model, Model)
    return model


def served(model: Model, length: int, dtype: torch.dtype = torch.float32, batch: int = 8) -> bool:
    return model.lowered(torch.zeros(batch, length, 1, dtype=dtype)) is not None


@contextmanager
def watched(model: Model) -> Iterator[None]:
    """A hook that sees a part of the model keeps its modules at work."""
    handle = next(m for m in model.modules() if isinstance(m, Block)).register_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("layer", [S4Config(4), S4DConfig(4), DSSConfig(4)], ids=["s4", "s4d", "dss"])
@pytest.mark.parametrize("length", [65, 225])
def test_values_and_gradients_beyond_the_reach_of_products(layer: LayerConfig, length: int) -> None:
    model = model_of(layer, dtype=torch.float64, ads=AdSConfig("relu"))
    x = torch.rand(3, length, 1, dtype=torch.float64, requires_grad=True)
    assert served(model, length, torch.float64)
    found = []
    with model.frozen():
        for f in (model, lambda x: model.from_embedding(model.embed(x))):
            y = f(x)
            found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1], gradient=True)


@pytest.mark.parametrize("layer", [S4Config(4), S4DConfig(4)], ids=["s4", "s4d"])
def test_a_training_step_on_long_sequences(layer: LayerConfig) -> None:
    """Loss and gradients of the parameters, after an attack, as through the modules."""
    model, x = model_of(layer, dtype=torch.float64), torch.rand(9, 300, 1, dtype=torch.float64)
    batch = Batch(x, torch.arange(9) % 4, None, Draws(0, torch.arange(9)))
    objective = trades(Threat("linf", 0.03, (0.0, 1.0)), steps=2)
    assert served(model, 300, torch.float64)

    def learnt() -> list[Tensor]:
        loss = objective(model, batch).value
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    got = learnt()
    with watched(model):
        want = learnt()
    assert_close(got[0], want[0])
    for g, w in zip(got[1:], want[1:], strict=True):
        assert_close(g, w, gradient=True)


def test_a_walk_reaches_further_than_products() -> None:
    model = model_of(S4DConfig(4))
    lengths = [lowered.SHORT, lowered.SHORT + 1, lowered.WALKED, lowered.WALKED + 1]
    assert [served(model, l) for l in lengths] == [True, True, True, False]
    with use("torch"):
        assert [served(model, l) for l in lengths] == [True, False, False, False]
    for other in (model_of(S4DConfig(4), "glu"), model_of(S4DConfig(4), norm="rms")):
        assert [served(other, l) for l in lengths] == [True, False, False, False]


def test_few_samples_walk_far_only_when_frozen() -> None:
    model = model_of(S4DConfig(4))
    lengths = [1, lowered.ALONE, lowered.ALONE + 1, lowered.WALKED]
    assert [served(model, l, batch=7) for l in lengths] == [True, True, False, False]
    with model.frozen():
        assert [served(model, l, batch=1) for l in lengths] == [True, True, True, True]


def test_a_layer_declared_for_a_length_is_not_taken_beyond_it() -> None:
    model = model_of(DSSConfig(4, "softmax", length=100))
    assert served(model, 100)
    assert not served(model, 101)


def test_a_hook_keeps_the_modules_at_any_length() -> None:
    model = model_of(S4DConfig(4))
    with watched(model):
        assert not served(model, 225)
    assert served(model, 225)


class _Pixels(nn.Module):
    """Somebody's wrapper: an image read pixel by pixel."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.flatten(1)[:, :, None])


@pytest.mark.parametrize("layer", [S4Config(4), DSSConfig(4), S5Config(4)], ids=["s4", "dss", "s5"])
def test_attacks_judge_every_sample_as_through_the_modules(layer: LayerConfig) -> None:
    model, x = model_of(layer), torch.rand(12, 1, 9, 9)
    with torch.no_grad():
        logits = _Pixels(model)(x)
        model.head.out.bias -= logits.mean(0)  # else one class wins everywhere
        y = (logits - logits.mean(0)).argmax(1)
    attacks = (APGD(steps=8), APGD(targeted_dlr, steps=5, targets=2), FAB(targets=2, steps=4), Square(n_queries=20))
    threat = Threat("linf", 0.03, bounds=(0.0, 1.0))
    quick = autoattack(_Pixels(model), x, y, threat, attacks)
    with watched(model):
        slow = autoattack(_Pixels(model), x, y, threat, attacks)
    assert 0 < quick.accuracy < 1
    assert torch.equal(quick.broken_by, slow.broken_by)
    pieces = autoattack(_Pixels(model), x, y, threat, attacks, batch_size=5)
    assert torch.equal(pieces.x_adv, quick.x_adv)
    assert torch.equal(pieces.broken_by, quick.broken_by)
