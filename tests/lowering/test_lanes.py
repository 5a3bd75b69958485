"""The walk by cohorts equals the modules, in values and in the gradient of x, for every form that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close, stirred
from resolvent.lowering import lowered
from resolvent.lowering.cpu import lanes
from resolvent.models.config import AdSConfig, ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import DSSConfig, S4Config, S4DConfig
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use

pytest.importorskip("numba")


def config(act: Any = "none", final: Any = "none", mixer: Any = "linear", d: int = 6, **more: Any) -> ModelConfig:
    layer, channels = more.pop("layer", S4DConfig(4)), more.pop("channels", 2)
    block = ResidualConfig(layer, mixer=mixer, activation=act, final_activation=final, skip=more.pop("skip", True))
    return replace(robustness("s4"), d_model=d, layers=2, input=ChannelsConfig(channels), block=block, **more)


def model_of(settings: ModelConfig, dtype: torch.dtype = torch.float64) -> Model:
    return stirred(settings, 0.05, dtype)


def answers(model: Model, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values and gradient of the walk, then those of the modules."""
    x = x.clone().requires_grad_()
    form = lowered.Lowered(model)
    with torch.no_grad():
        tables = form.tables(x.shape[1], x.dtype)
    assert tables.plan is not None
    got, want = form(x, tables), model.from_embedding(model.embed(x))
    assert got.grad_fn is not None
    weight = torch.linspace(-1, 1, want.numel(), dtype=x.dtype).view_as(want)
    slopes = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, want)]
    return got, slopes[0], want, slopes[1]


def compare(settings: ModelConfig, batch: int, length: int, dtype: torch.dtype = torch.float64) -> None:
    x = torch.rand(batch, length, settings.input.channels, dtype=dtype)  # type: ignore[union-attr]
    got, slope, want, true_slope = answers(model_of(settings, dtype), x)
    assert_close(got, want)
    assert_close(slope, true_slope, gradient=True)


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("norm", ["layer", "none"])
def test_scaffolds(prenorm: bool, pooling: Any, norm: Any) -> None:
    head = ClassifierConfig(3, pooling)
    compare(config(prenorm=prenorm, norm=norm, final_norm=True, head=head, act="gelu"), 9, 30)


@pytest.mark.parametrize("name", ["none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh"])
def test_activations(name: str) -> None:
    compare(config(act=name, final=name), 3, 14)


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("ads", ["relu", "sigmoid", "tanh"])
def test_adaptive_scaling(ads: Any, prenorm: bool) -> None:
    compare(config(ads=AdSConfig(ads, False), act="silu", prenorm=prenorm), 10, 9)


@pytest.mark.parametrize(("mixer", "skip"), [("none", True), ("none", False), ("linear", False)])
def test_no_mixer_and_no_skip(mixer: Any, skip: bool) -> None:
    compare(config(act="gelu", mixer=mixer, skip=skip, prenorm=not skip), 5, 13)


@pytest.mark.parametrize(
    "layer", [S4Config(4), DSSConfig(4), S4DConfig(4, init="real", skip=False)], ids=["s4", "dss", "real"]
)
def test_layers(layer: Any) -> None:
    compare(config(layer=layer), 4, 20)


@pytest.mark.parametrize(
    ("batch", "length", "d", "channels"), [(1, 1, 3, 1), (8, 12, 4, 5), (17, 64, 13, 1), (2, 61, 32, 9)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odd_shapes(batch: int, length: int, d: int, channels: int, dtype: torch.dtype) -> None:
    compare(config(d=d, channels=channels, act="gelu", prenorm=True), batch, length, dtype)


@pytest.mark.parametrize(("batch", "length", "d", "channels"), [(1, 1, 3, 1), (9, 7, 4, 2), (17, 61, 13, 3)])
def test_parameter_gradients_of_odd_shapes(batch: int, length: int, d: int, channels: int) -> None:
    """Sizes that tiles of sums do not divide."""
    model = model_of(config(d=d, channels=channels, act="gelu", ads=AdSConfig("tanh", False)))
    x, form = torch.rand(batch, length, channels, dtype=torch.float64), lowered.Lowered(model)
    tables = form.tables(length, torch.float64)
    assert tables.plan is not None
    assert tables.plan.sources
    own, found = list(model.parameters()), []
    for y in (form(x, tables), model.from_embedding(model.embed(x))):
        weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
        found.append(torch.autograd.grad((y * weight).sum(), own))
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True)


def test_a_sample_does_not_depend_on_its_cohort_or_on_the_threads() -> None:
    model, x = model_of(config(act="gelu"), torch.float32), torch.rand(21, 40, 2)
    out: Any = model.head.out
    with torch.no_grad():  # logits are features: the order in which torch sums products depends on the number of rows
        out.weight.copy_(torch.eye(*out.weight.shape))
        out.bias.zero_()
    threads = torch.get_num_threads()
    try:
        with model.frozen(), torch.no_grad():
            whole = model(x)
            torch.set_num_threads(1 if threads > 1 else 2)
            assert torch.equal(model(x), whole)
            assert torch.equal(model(x[5:6]), whole[5:6])
    finally:
        torch.set_num_threads(threads)


def test_a_sample_that_is_not_finite_spoils_no_other() -> None:
    model, x = model_of(config()), torch.rand(3, 10, 2, dtype=torch.float64)
    spoilt = x.clone()
    spoilt[1, 4] = torch.nan
    with model.frozen(), torch.no_grad():
        want, got = model(x), model(spoilt)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], want[[0, 2]])


def test_gradients_of_gradients() -> None:
    model = model_of(config(act="gelu"))
    x = torch.rand(2, 6, 2, dtype=torch.float64, requires_grad=True)
    found = []
    with model.frozen():
        for f in (model, lambda x: model.from_embedding(model.embed(x))):
            (g,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(g.square().sum(), x)[0])
    assert_close(found[0], found[1], gradient=True)


def test_what_has_no_walk_runs_as_ever() -> None:
    x = torch.rand(2, 6, 2, dtype=torch.float64)
    plain = [config(mixer="glu"), config(norm="rms"), config(ads=AdSConfig("relu", True))]
    for settings in plain:
        model = model_of(settings)
        form = lowered.Lowered(model)
        with torch.no_grad():
            tables = form.tables(6, torch.float64)
            assert tables.plan is None
            assert_close(form(x, tables), model.from_embedding(model.embed(x)))
    form = lowered.Lowered(model_of(config()))
    assert form.tables(6, torch.float64).learnt
    with use("torch"), torch.no_grad():
        assert form.tables(6, torch.float64).plan is None
    assert lanes.plan(form.tables(6, torch.float64).detached().parts, torch.float64) is not None
