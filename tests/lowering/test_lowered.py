"""The lowered form of a model equals its modules, in values and gradients; so do the steps that are made of it."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close, filters, stirred, through_modules
from resolvent.attacks import Draws, Threat
from resolvent.layers import DSS, S4, S4D
from resolvent.lowering import lowered, responses
from resolvent.lowering.responses import alike
from resolvent.models.config import AdSConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import DSSConfig, LayerConfig, S4Config, S4DConfig, S5Config
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use
from resolvent.training import pgd_at, trades
from resolvent.training.step import adversarial, cuda_graph
from resolvent.training.step.batch import Batch

toeplitz = import_module("resolvent.ops.filter.toeplitz")

LAYERS: dict[str, LayerConfig] = {
    "s4": S4Config(8),
    "s4d": S4DConfig(8),
    "s4d real": S4DConfig(8, init="real", skip=False),
    "dss": DSSConfig(8),
    "dss softmax": DSSConfig(8, "softmax", separate_dt=False),
}


def config(layer: LayerConfig = LAYERS["s4d"], act: Any = "none", final: Any = "none", **more: Any) -> ModelConfig:
    block = ResidualConfig(layer, mixer=more.pop("mixer", "linear"), activation=act, final_activation=final)
    return replace(robustness("s4"), d_model=6, layers=2, block=block, **more)


def model_of(settings: ModelConfig) -> Model:
    return stirred(settings, 0.05)


def compare(model: Model, x: Tensor) -> None:
    """By torch's products, and by cohorts where numba is installed and the form has such a walk."""
    x = x.requires_grad_()
    inputs = [x, *model.parameters()]
    want = through_modules(model, x)
    true_gradients = torch.autograd.grad(want.square().sum(), inputs, allow_unused=True)
    form = lowered.Lowered(model)
    assert lowered.lowerable(model)
    for backend in (use("torch"), nullcontext()):
        with backend:
            got = form(x, form.tables(x.shape[1], torch.float64))
            assert_close(got, want)
            gradients = torch.autograd.grad(got.square().sum(), inputs, allow_unused=True)
        for g, w in zip(gradients, true_gradients, strict=True):
            if w is not None:
                assert_close(g, w, gradient=True)


@pytest.mark.parametrize("slices", [64, 4])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layers(layer: LayerConfig, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toeplitz.SLICE, "cpu", slices)
    compare(model_of(config(layer)), torch.rand(3, 13, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("act", "final", "ads"),
    [("gelu", "gelu", "relu"), ("gelu_tanh", "silu", "sigmoid"), ("tanh", "none", "tanh"), ("relu", "sigmoid", None)],
)
def test_activations_and_adaptive_scaling(act: str, final: str, ads: Any) -> None:
    compare(
        model_of(config(act=act, final=final, ads=None if ads is None else AdSConfig(ads, False))),
        torch.rand(2, 9, 3, dtype=torch.float64),
    )


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("mixer", ["none", "linear", "glu", "half_glu1", "half_glu2", "mlp"])
def test_scaffolds(mixer: str, prenorm: bool) -> None:
    norm: Any = {"none": "rms", "glu": "scale", "mlp": "none"}.get(mixer, "layer")
    settings = config(
        mixer=mixer, act="gelu", prenorm=prenorm, norm=norm, final_norm=prenorm, ads=AdSConfig("relu", True)
    )
    compare(model_of(replace(settings, head=ClassifierConfig(4, "last"))), torch.rand(2, 7, 3, dtype=torch.float64))


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 64), (5, 33)])
def test_odd_shapes(batch: int, length: int) -> None:
    compare(model_of(config()), torch.rand(batch, length, 3, dtype=torch.float64))


def test_forward_takes_the_lowered_form_and_says_the_same() -> None:
    model, x = model_of(config()), torch.rand(2, 10, 3, dtype=torch.float64)
    assert model.lowered(x) is not None
    assert_close(model(x), through_modules(model, x))


def test_second_derivatives() -> None:
    model = model_of(config(act="gelu", ads=AdSConfig("tanh", False)))
    x = torch.rand(2, 6, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for f in (model, lambda x: through_modules(model, x)):
        (g,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, *model.parameters()], allow_unused=True))
    for got, want in zip(*found, strict=True):
        if want is not None and want.abs().max() > 0:
            assert_close(got, want, gradient=True)


def test_second_derivatives_of_a_frozen_model() -> None:
    model, x = model_of(config()), torch.rand(2, 6, 3, dtype=torch.float64, requires_grad=True)
    with model.frozen():
        found = []
        for f in (model, lambda x: through_modules(model, x)):
            (g,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(g.square().sum(), x)[0])
    assert_close(found[0], found[1], gradient=True)


def test_tables_are_made_once_when_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(config()), torch.rand(2, 6, 3, dtype=torch.float64, requires_grad=True)
    made = []
    tables = lowered.Lowered.tables
    monkeypatch.setattr(lowered.Lowered, "tables", lambda self, *a: made.append(a) or tables(self, *a))
    with model.frozen():
        first, *_ = (torch.autograd.grad(model(x).sum(), x)[0] for _ in range(3))
        assert len(made) == 1
        with pytest.raises(RuntimeError):
            torch.autograd.grad(model(x).sum(), next(model.parameters()))
    assert_close(first, torch.autograd.grad(through_modules(model, x).sum(), x)[0], gradient=True)


def test_what_has_no_lowered_form_runs_as_ever() -> None:
    x = torch.rand(2, 6, 3, dtype=torch.float64)
    model = model_of(config())
    hook = model.tower.body.blocks[0].layer.register_forward_hook(lambda *_: None)
    assert model.lowered(x) is None
    hook.remove()
    assert model.lowered(x) is not None
    assert model.lowered(x.float().bfloat16()) is None
    assert model.lowered(torch.rand(2, 513, 3, dtype=torch.float64)) is None  # too long to pay on a CPU
    dropout = model_of(config(dropout=0.1))
    assert dropout.lowered(x) is None
    assert dropout.eval().lowered(x) is not None
    later = model_of(config())  # a rate that is set after the first pass counts as well
    assert later.train().lowered(x) is not None
    for module in later.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    assert later.lowered(x) is None
    assert not torch.equal(later(x), later(x))
    assert model_of(config(S4DConfig(8, bidirectional=True))).lowered(x) is None
    declared = model_of(config(DSSConfig(8, "softmax", length=5)))
    with pytest.raises(ValueError, match="declared for 5 steps"):
        declared(x)


def test_wrong_input_is_still_refused() -> None:
    with pytest.raises(ValueError, match="expected x of shape"):
        model_of(config())(torch.rand(2, 6, 4, dtype=torch.float64))


@pytest.mark.parametrize("backend", ["torch", None])
@pytest.mark.parametrize("layer", [S4DConfig(4), S5Config(4)])
def test_gradients_of_gradients_where_x_is_not_in_one_piece(layer: LayerConfig, backend: str | None) -> None:
    model, x = model_of(config(layer)), torch.rand(9, 3, 20, dtype=torch.float64)
    found = []
    for at in (x.mT, x.mT.contiguous()):
        at = at.detach().requires_grad_()
        with nullcontext() if backend is None else use(backend):
            first = torch.autograd.grad(model(at).square().sum(), [at, *model.parameters()], create_graph=True)
            found.append(torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), at)[0])
    assert_close(*found, gradient=True)


@pytest.mark.parametrize(
    "make",
    [lambda: S4(6, 8, n_ssm=3, rank=2), lambda: S4(5, 8, discretisation="zoh"), lambda: S4D(5, 8), lambda: DSS(5, 8)],
)
def test_responses(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the layer answers to an impulse, one by one and mapped over together."""
    layers = [make().double() for _ in range(3)]
    assert alike(filters(*layers))
    monkeypatch.setattr(responses, "_can_batch", lambda layers: len(layers) > 1)
    for layer, k in zip(layers, responses.impulse_responses(filters(*layers), 37), strict=True):
        impulse = torch.zeros(1, 37, layer.d_model, dtype=torch.float64)
        impulse[:, 0] = 1
        assert_close(k, layer(impulse)[0][0].T)
        assert_close(responses.impulse_responses(filters(layer), 37)[0], k)
    assert not alike(filters(S4D(5, 8), S4D(5, 8, discretisation="bilinear")))


@pytest.mark.parametrize(("l", "size"), [(1, 64), (9, 4), (16, 8), (30, 64)])
def test_toeplitz_products(l: int, size: int) -> None:
    x, k = torch.randn(3, 2, l, dtype=torch.float64), torch.randn(3, l, dtype=torch.float64)
    x, k = x.requires_grad_(), k.requires_grad_()
    got, want = (
        toeplitz.toeplitz(k, torch.float64, size)(x),
        torch.stack(
            [sum((k[:, s, None] * x[:, :, t - s] for s in range(t + 1)), torch.zeros(())) for t in range(l)], -1
        ),
    )
    assert_close(got, want)
    weight = torch.randn_like(want)
    for g, w in zip(*(torch.autograd.grad((y * weight).sum(), (x, k)) for y in (got, want)), strict=True):
        assert_close(g, w, gradient=True)


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_a_recorded_step_is_the_step(make: Any) -> None:
    """What a GPU records, run here without a graph: loss, outputs and gradients of the objective as it stands."""
    model, objective = model_of(config(LAYERS["s4"])), make(Threat("linf", 0.03, (0, 1)), steps=3)
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(4, 12, 3, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    batch = Batch(x, y, None, Draws(0, torch.arange(4)))
    want = objective(copy.deepcopy(model), batch)
    form = lowered.Lowered(model)
    tables = form.tables(12, torch.float64)
    still = tables.detached()
    passes = adversarial.Passes(lambda x: form(x, still), lambda x: form(x, tables))
    value, output = objective.recorded(passes, batch, batch.fitted(objective.inner.threat))
    assert_close(value, want.value)
    assert_close(output, want.output)
    direct = objective(model, batch)
    for a, b in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (value, direct.value)), strict=True):
        assert_close(a, b, gradient=True)


def test_a_sample_without_gradient_stays_put() -> None:
    def f(x: Tensor) -> Tensor:
        bad = torch.where(x[:, :1, 0] > 2, torch.nan, 1.0)
        return torch.cat([x.sum((1, 2))[:, None] * bad, torch.zeros(len(x), 1)], 1)

    x = torch.rand(2, 3, 1)
    x[1, 0] = 3.0
    objective = pgd_at(Threat("linf", 0.5), steps=2)
    batch = Batch(x, torch.tensor([1, 1]), None, Draws(0, torch.arange(2)))
    threat = batch.fitted(objective.inner.threat)
    reach = (nn.functional.mse_loss, torch.zeros(2, 2))
    moved = adversarial.rise(f, objective.inner.ascent(threat, x), x, (lambda o, y: (o - y).square().sum(1), reach[1]))
    assert (moved[0] != x[0]).all()
    assert (moved[1] == x[1]).all()


def test_a_cpu_runs_the_sequence_at_once_and_keeps_no_recording() -> None:
    model, objective = model_of(config()), pgd_at(Threat("linf", 0.03), steps=2)
    batch = Batch(torch.rand(2, 5, 3, dtype=torch.float64), torch.tensor([0, 1]), None, Draws(0, torch.arange(2)))
    quick = adversarial.lowered_step(model, batch, objective.inner, objective.recorded)
    assert quick is not None
    assert model not in cuda_graph._recorded
    hook = model.tower.body.blocks[0].layer.register_forward_hook(lambda *_: None)
    assert adversarial.lowered_step(model, batch, objective.inner, objective.recorded) is None
    want = objective(model, batch)
    hook.remove()
    assert_close(quick[0], want.value)
    assert_close(quick[1], want.output)
    found = [torch.autograd.grad(v, list(model.parameters())) for v in (quick[0], want.value)]
    for got, wanted in zip(*found, strict=True):
        assert_close(got, wanted, gradient=True)


def test_a_loss_whose_gradients_are_gone_says_so() -> None:
    """A recording holds the gradients of its last run alone."""
    w = torch.ones(2, requires_grad=True)
    recording: Any = SimpleNamespace(replays=1, gradients=[torch.full((2,), 3.0)])
    loss = cuda_graph._Found.apply(torch.tensor(5.0), recording, None, w)
    (2 * loss).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [6.0, 6.0]
    loss = cuda_graph._Found.apply(torch.tensor(5.0), recording, None, w)
    recording.replays = 2
    with pytest.raises(RuntimeError, match="call backward\\(\\) on each loss before the next"):
        loss.backward()
