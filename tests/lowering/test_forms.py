"""The forms of S5, LRU, Mamba and Mega equal the modules, in values and gradients; so do the steps made of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close, stirred, through_modules
from resolvent.attacks import Draws, Threat
from resolvent.layers.attention.attend import RelativeBias
from resolvent.lowering import forms
from resolvent.models.config import AdSConfig, ClassifierConfig, H3Config, MambaConfig, MegaConfig, ModelConfig
from resolvent.models.config import ResidualConfig as Scaffold
from resolvent.models.layer_config import LRUConfig, RGLRUConfig, S5Config
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.ops.attention.column_attention import bias_line
from resolvent.ops.filter.toeplitz import toeplitz
from resolvent.ops.filter.two_sided import TwoSided, plain_two_sided
from resolvent.runtime import dispatch
from resolvent.scan import selective_scan
from resolvent.training import pgd_at, trades
from resolvent.training.step.adversarial import Passes
from resolvent.training.step.batch import Batch

MEGA = MegaConfig(z=4, hidden=5, ffn=7, d_state=3, max_length=8, bidirectional=True)
PRE: dict[str, Any] = {"prenorm": True, "final_norm": True}
CASES: dict[str, ModelConfig] = {
    "s5": replace(robustness("s5"), block=Scaffold(S5Config(8), "none", "none")),
    "s5 all states": replace(robustness("s5"), block=Scaffold(S5Config(8, conjugate=False), "none", "none")),
    "s5 gelu": replace(robustness("s5"), block=Scaffold(S5Config(8), "half_glu1", "gelu"), ads=AdSConfig("relu")),
    "s5 without skip": replace(robustness("s5"), block=Scaffold(S5Config(8), "none", "none", skip=False)),
    "s5 rms": replace(robustness("s5"), block=Scaffold(S5Config(8, discretisation="bilinear"), "glu"), norm="rms"),
    "lru prenorm": replace(robustness("s5"), block=Scaffold(LRUConfig(8), "glu", "gelu"), **PRE),
    "mamba": replace(robustness("mamba"), block=MambaConfig(4)),
    "mamba prenorm": replace(robustness("mamba"), block=MambaConfig(4, expand=3, width=2), **PRE),
    "mega": replace(robustness("mega"), block=MEGA),
    "mega prenorm": replace(robustness("mega", activation="gelu"), block=MEGA, **PRE),
}


def model_of(config: ModelConfig) -> Model:
    return stirred(replace(config, d_model=6, layers=2), 0.05)


def through_form(model: Model, x: Tensor) -> Tensor:
    assert forms.has_form(model)
    form = forms.StackForm(model)
    return form(x, form.tables(x.shape[1], x.dtype))


@pytest.mark.parametrize(("batch", "length"), [(3, 13), (1, 1)])
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_values_and_gradients(config: ModelConfig, batch: int, length: int) -> None:
    model, x = model_of(config), torch.rand(batch, length, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *model.parameters()]
    got, want = through_form(model, x), through_modules(model, x)
    assert_close(got, want)
    gradients = [torch.autograd.grad(y.square().sum(), inputs, allow_unused=True) for y in (got, want)]
    scale = max(float(w.abs().max()) for w in gradients[1] if w is not None)
    for g, w in zip(*gradients, strict=True):
        if w is not None and float(w.abs().max()) > 1e-9 * scale:  # less is what cancelled
            assert g is not None
            assert_close(g, w, gradient=True)


@pytest.mark.parametrize("name", ["s5", "mamba", "mega"])
def test_the_last_step_alone(name: str) -> None:
    model = model_of(replace(CASES[name], head=ClassifierConfig(4, "last")))
    x = torch.rand(2, 7, 3, dtype=torch.float64)
    assert_close(through_form(model, x), through_modules(model, x))


@pytest.mark.parametrize("make", [pgd_at, trades])
@pytest.mark.parametrize("name", ["s5", "mamba", "mega"])
def test_a_recorded_step_is_the_step(name: str, make: Any) -> None:
    """What a GPU records, run here without a graph: loss, outputs and gradients of the objective as it stands."""
    model, objective = model_of(CASES[name]), make(Threat("linf", 0.03, (0, 1)), steps=3)
    x, y = torch.rand(4, 9, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    batch = Batch(x, y, None, Draws(0, torch.arange(4)))
    form = forms.StackForm(model)
    tables = form.tables(9, torch.float64)
    still = tables.detached()
    passes = Passes(lambda x: form(x, still), lambda x: form(x, tables))
    value, output = objective.recorded(passes, batch, batch.fitted(objective.inner.threat))
    other = copy.deepcopy(model)
    want = objective(other, batch)
    assert_close(value, want.value)
    assert_close(output, want.output)
    found = [
        torch.autograd.grad(v, list(m.parameters()), allow_unused=True)
        for v, m in ((value, model), (want.value, other))
    ]
    scale = max(float(w.abs().max()) for w in found[1] if w is not None)
    for g, w in zip(*found, strict=True):
        if w is not None and float(w.abs().max()) > 1e-9 * scale:
            assert g is not None
            assert_close(g, w, gradient=True)


def test_still_tables_have_no_gradients() -> None:
    for name in ("s5", "mamba", "mega"):
        model = model_of(CASES[name])
        form = forms.StackForm(model)
        x = torch.rand(2, 5, 3, dtype=torch.float64)
        body = form.tables(5, torch.float64).detached()
        h = form._entered(x, body)
        for block, kind, weights in zip(form.blocks, form.kinds, body.blocks, strict=True):
            h = kind.run(block, h, weights)
        assert not h.requires_grad


def test_tables_are_made_once_when_frozen() -> None:
    model = model_of(CASES["s5"])
    form = forms.StackForm(model)
    with model.frozen():
        assert form.kept_tables(5, torch.float64) is form.kept_tables(5, torch.float64)
    assert form.kept_tables(5, torch.float64) is not form.kept_tables(5, torch.float64)


def test_what_has_no_form() -> None:
    assert forms.has_form(model_of(CASES["mega"]))
    none = {
        "causal": replace(CASES["mega"], block=replace(MEGA, bidirectional=False)),
        "chunks": replace(CASES["mega"], block=replace(MEGA, chunk=4)),
        "laplace": replace(CASES["mega"], block=replace(MEGA, attention="laplace")),
        "scaled mega": replace(CASES["mega"], ads=AdSConfig("relu")),
        "scaled mamba": replace(CASES["mamba"], ads=AdSConfig("relu")),
        "both ways": replace(CASES["s5"], block=Scaffold(S5Config(8, bidirectional=True), "none", "none")),
        "dropout": replace(CASES["s5"], dropout=0.1),
        "batch norm": replace(CASES["s5"], norm="batch"),
        "largest": replace(CASES["s5"], head=ClassifierConfig(4, "max")),
        "h3": replace(CASES["s5"], block=H3Config(4)),
        "mamba around RG-LRU": replace(CASES["mamba"], block=MambaConfig(layer=RGLRUConfig())),
    }
    for name, config in none.items():
        assert not forms.has_form(model_of(config)), name
    assert forms.has_form(model_of(none["dropout"]).eval())


def test_hooks_keep_the_modules() -> None:
    model = model_of(CASES["mamba"])
    hook = model.tower.body.blocks[0].register_forward_hook(lambda *_: None)
    assert not forms.has_form(model)
    hook.remove()
    assert forms.has_form(model)


def test_a_cpu_runs_the_modules() -> None:
    assert model_of(CASES["mamba"]).lowered(torch.rand(2, 6, 3, dtype=torch.float64)) is None


@pytest.mark.parametrize("length", [1, 3, 8, 12])
def test_bias_line(length: int) -> None:
    bias = RelativeBias(8, causal=False)
    at = torch.arange(length)
    distance = at[:, None] - at
    line = bias_line(bias.table[0], length)
    assert torch.equal(line[distance + length - 1], bias(distance)[0])


def test_two_sided_convolution() -> None:
    x = torch.randn(3, 2, 11, dtype=torch.float64, requires_grad=True)
    kernels = [torch.randn(3, 11, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    past, future = (toeplitz(k, torch.float64, 4) for k in kernels)
    got, want = TwoSided(past, future)(x), plain_two_sided(x, *kernels)
    assert_close(got, want)
    g = torch.randn_like(want)
    inputs = (x, *kernels)
    for a, b in zip(torch.autograd.grad(got, inputs, g), torch.autograd.grad(want, inputs, g), strict=True):
        assert_close(a, b, gradient=True)
    few = (x[:1, :1, :3], *(k[:1, :3] for k in kernels))
    apart = x.detach()[:2, :, :4].permute(1, 0, 2).requires_grad_()  # in memory that is not in one piece
    for at, p, f in (few, (apart, *(k[:2, :4] for k in kernels))):
        torch.autograd.gradgradcheck(
            lambda x, p, f: TwoSided(toeplitz(p, x.dtype, 2), toeplitz(f, x.dtype, 2))(x), (at, p, f)
        )


def test_the_backward_kernel_is_chosen_ahead() -> None:
    """In autograd's own thread the trial of a candidate, which differentiates, would wait for that very thread."""
    dispatch.forget()
    u = torch.rand(1, 3, 2, dtype=torch.float64, requires_grad=True)
    selective_scan(u, u, -torch.rand(2, 2).double(), torch.rand(1, 3, 2).double(), torch.rand(1, 3, 2).double())
    assert any(key[0] == "selective_scan_backward" for key in dispatch._chosen)
