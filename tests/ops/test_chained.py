"""Filters in blocks against the sum itself with the whole kernel, and autograd through it; a model made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close, filters
from resolvent.layers import DSS, S4, S4D
from resolvent.lowering import lowered, responses
from resolvent.models import build_model
from resolvent.models.config import AdSConfig, ChannelsConfig, ClassifierConfig, ResidualConfig
from resolvent.models.layer_config import DSSConfig, LayerConfig, S4Config, S4DConfig
from resolvent.models.presets import robustness
from resolvent.ops.filter.chained import Chained, make_chained
from resolvent.ops.filter.convolution import direct_conv
from resolvent.runtime.dispatch import use

LAYERS: dict[str, Any] = {
    "s4": lambda: S4(3, 4),
    "s4d": lambda: S4D(3, 4, dt_min=0.01, dt_max=0.3),
    "real": lambda: S4D(3, 3, init="real", dt_min=0.01, dt_max=0.3),
    "dss": lambda: DSS(3, 4),
    "softmax": lambda: DSS(3, 4, kernel="softmax", length=64),
}
LENGTHS = [(1, 8), (5, 8), (8, 8), (9, 8), (16, 8), (45, 8), (64, 4), (37, 1)]
HALF = torch.bfloat16


def made(layer: Any, l: int, T: int, dtype: torch.dtype = torch.float64) -> Chained:
    if l <= T:
        (k,) = responses.impulse_responses(filters(layer), l)
        return make_chained(torch.nn.functional.pad(k, (0, T - l)).to(dtype), (), dtype)
    ((k, *links),) = responses.linked_responses(filters(layer), l, T)
    return make_chained(k.to(torch.promote_types(dtype, torch.float32)), tuple(links), dtype)


@pytest.mark.parametrize(("l", "T"), LENGTHS)
@pytest.mark.parametrize("name", LAYERS)
def test_products(name: str, l: int, T: int) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x, g = (torch.randn(3, 2, l, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    (k,) = responses.impulse_responses(filters(layer), l)
    want = direct_conv(x, k[:, None])
    gx, *slopes = torch.autograd.grad(want, [x, *layer.parameters()], g, allow_unused=True)
    own = made(layer, l, T)
    assert len(own.learned) == (4 if l > T else 1)
    found = torch.autograd.grad(own.learned, list(layer.parameters()), own.taps(x.detach(), g), allow_unused=True)
    x = x.detach()
    assert_close(own.forward(x), want)
    assert_close(own.adjoint(g), gx)
    onto = x.clone()
    assert own.adjoint(g, onto).data_ptr() == onto.data_ptr()
    assert_close(onto, gx + x)
    for got, true in zip(found, slopes, strict=True):
        if true is not None:
            assert got is not None
            assert_close(got, true, gradient=True)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_to_the_second_order(name: str) -> None:
    torch.manual_seed(0)
    own, x = made(LAYERS[name]().double(), 13, 4), torch.randn(3, 2, 13, dtype=torch.float64, requires_grad=True)
    learned = [t.detach().requires_grad_() for t in own.learned]

    def run(x: Tensor, kernel: Tensor, *links: Tensor) -> Tensor:
        return make_chained(kernel, links, torch.float64)(x)

    torch.autograd.gradcheck(run, (x, *learned))
    torch.autograd.gradgradcheck(lambda x, *t: run(x, *t) * x, (x, *learned))


def test_only_x_is_differentiated_when_detached() -> None:
    layer, x = S4D(3, 4).double(), torch.randn(3, 2, 21, dtype=torch.float64, requires_grad=True)
    y = made(layer, 21, 4).detached()(x)
    found = torch.autograd.grad(y.sum(), [x, *layer.parameters()], allow_unused=True)
    assert all(g is None for g in found[1:])
    (k,) = responses.impulse_responses(filters(layer), 21)
    assert_close(found[0], torch.autograd.grad(direct_conv(x, k[:, None]).sum(), x)[0])


@pytest.mark.parametrize("name", ["s4", "s4d", "dss"])
def test_half_types_carry_float32(name: str) -> None:
    """A slow mode over many blocks, summed in float32."""
    torch.manual_seed(0)
    layer, x = LAYERS[name](), torch.randn(3, 2, 3000).bfloat16()
    own = made(layer, 3000, 64, torch.bfloat16).detached()
    (k,) = responses.impulse_responses(filters(layer), 3000)
    want = direct_conv(x.double(), k[:, None]).detach()
    y = own.forward(x).detach()
    assert y.dtype == torch.bfloat16
    assert float((y.double() - want).norm() / want.norm()) <= 1e-2


def test_gradients_inside_autocast_stay_in_float32() -> None:
    """What S4 carries on, of slow modes, whatever the caller's context."""
    torch.manual_seed(0)
    layer, g = S4(3, 8, dt_min=1e-3, dt_max=1e-2), torch.randn(3, 2, 600).cumsum(-1)
    found = []
    for inside in (False, True):
        x = torch.zeros(3, 2, 600, requires_grad=True)
        y = made(layer, 600, 32, torch.float32)(x)
        with torch.autocast("cpu", HALF, enabled=inside):
            found.append(torch.autograd.grad(y, [x, *layer.parameters()], g))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("T", [4, 16])
@pytest.mark.parametrize("learnt", [False, True])
def test_many_gradients_at_once(T: int, learnt: bool) -> None:
    layer, x = S4D(2, 4).double(), torch.randn(2, 2, 13, dtype=torch.float64, requires_grad=True)
    own = made(layer, 13, T)
    own = own if learnt else own.detached()
    y, many = own(x), torch.randn(5, 2, 2, 13, dtype=torch.float64)
    (got,) = torch.autograd.grad(y, x, many, is_grads_batched=True, retain_graph=True)
    for g, row in zip(many, got, strict=True):
        assert_close(row, torch.autograd.grad(y, x, g, retain_graph=True)[0])


def test_an_empty_batch() -> None:
    own, x = made(S4D(3, 4).double(), 21, 4), torch.zeros(3, 0, 21, dtype=torch.float64)
    assert own.forward(x).shape == own.adjoint(x).shape == x.shape
    assert all(float(t.abs().sum()) == 0 for t in own.taps(x, x))


@pytest.mark.parametrize("layer", [S4Config(4), S4DConfig(4), DSSConfig(4)], ids=["s4", "s4d", "dss"])
@pytest.mark.parametrize(("mixer", "ads"), [("linear", None), ("linear", "relu"), ("glu", None)])
@pytest.mark.parametrize(("l", "T"), [(61, 16), (64, 16), (61, 64)])
def test_a_model(layer: LayerConfig, mixer: Any, ads: Any, l: int, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, the gradients of x and of the parameters, and a gradient of a gradient."""
    torch.manual_seed(0)
    block = ResidualConfig(layer, mixer=mixer, activation="gelu")
    config = replace(robustness("s4"), d_model=5, layers=2, input=ChannelsConfig(1), block=block)
    config = replace(config, ads=ads and AdSConfig(ads, False), head=ClassifierConfig(4))
    model, x = build_model(config).double(), torch.rand(3, l, 1, dtype=torch.float64)
    asked: list[int] = []

    def kernels(nodes: list[Any], length: int, dtype: torch.dtype) -> tuple[list[Tensor], tuple[Chained, ...]]:
        asked.append(len(nodes))
        found = tuple(made(node.module, length, T, dtype) for node in nodes)
        return [own.learned[0] for own in found], found

    monkeypatch.setattr(lowered, "make_kernels", kernels)
    found = []
    with use("torch"):
        for f in (model, lambda x: model.from_embedding(model.embed(x))):
            at = x.clone().requires_grad_()
            logits = f(at)
            first = torch.autograd.grad(logits.square().sum(), [at, *model.parameters()], create_graph=True)
            (second,) = torch.autograd.grad(first[0].square().sum(), at)
            found.append([logits, *first, second])
    assert asked == [2]
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True)


@pytest.mark.parametrize("kind", [S4, S4D, DSS])
def test_layers_together(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped over, as on a GPU, and one by one."""
    layers = [kind(3, 4).double() for _ in range(2)]
    monkeypatch.setattr(responses, "_can_batch", lambda layers: len(layers) > 1)
    for layer, got in zip(layers, responses.linked_responses(filters(*layers), 45, 8), strict=True):
        ((k, *links),) = responses.linked_responses(filters(layer), 45, 8)
        for a, want in zip(got, (k, *links), strict=True):
            assert_close(a, want)
