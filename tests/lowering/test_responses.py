"""The impulse response of S4D against what the layer answers step by step, in values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close, filters
from resolvent.layers import DSS, S4, S4D
from resolvent.lowering import responses
from resolvent.lowering.responses import impulse_responses
from resolvent.ssm.impulse import _dense_sums, _DenseSums


def layer_of(d: int = 5, n: int = 6, **more: Any) -> S4D:
    torch.manual_seed(0)
    layer = S4D(d, n, **({"dt_min": 0.01, "dt_max": 1.0} | more)).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return layer


def answer(layer: S4D | S4, length: int) -> Tensor:
    """Step by step."""
    state, rows = layer.initial_state(1), []
    for t in range(length):
        y, state = layer.step(torch.full((1, layer.d_model), float(t == 0), dtype=torch.float64), state)
        rows.append(y[0])
    return torch.stack(rows, 1)  # (d, l)


def response(layer: S4D | S4, length: int) -> Tensor:
    return impulse_responses(filters(layer), length)[0]


def compare(layer: S4D | S4, length: int) -> None:
    got, want = response(layer, length), answer(layer, length)
    assert_close(got, want)
    weight = torch.linspace(-1, 2, want.numel(), dtype=torch.float64).view_as(want)
    own = list(layer.parameters())
    slopes = [torch.autograd.grad(K, own, weight, materialize_grads=True) for K in (got, want)]
    for a, b in zip(*slopes, strict=True):
        assert_close(a, b, gradient=True)


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize(("d", "n", "length"), [(1, 2, 1), (5, 6, 2), (3, 34, 61), (7, 4, 128)])
def test_shapes(d: int, n: int, length: int, discretisation: str) -> None:
    compare(layer_of(d, n, discretisation=discretisation), length)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 101])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_dense_systems(length: int, discretisation: str) -> None:
    torch.manual_seed(0)
    layer = S4(3, 6, discretisation=discretisation, dt_min=0.01, dt_max=1.0).double()
    compare(layer, length)
    bank = layer._bank(length)
    own = [t.detach().requires_grad_() for t in (bank.A, bank.B, bank.C)]
    by_hand, plain = _DenseSums.apply(*own, length), _dense_sums(*own, length)  # as a GPU has it
    assert_close(by_hand, plain)
    g = torch.randn_like(plain)
    slopes = [torch.autograd.grad(K, own, g, create_graph=True, materialize_grads=True) for K in (by_hand, plain)]
    for a, b in zip(*slopes, strict=True):
        assert_close(a, b, gradient=True)
    again = _DenseSums.apply(*own, length)
    with torch.no_grad():  # and where nobody differentiates them again, by the sums written by hand
        found = torch.autograd.grad(again, own, g, materialize_grads=True)
    for a, b in zip(found, slopes[1], strict=True):
        assert_close(a, b, gradient=True)


@pytest.mark.parametrize("kind", [S4, S4D, DSS])
def test_layers_that_are_alike_are_joined(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [kind(3, 6).double() for _ in range(3)]
    own = [p for layer in layers for p in layer.parameters()]
    want = [responses.impulse(layer._bank(21), 21) for layer in layers]
    monkeypatch.setattr(responses, "_can_batch", lambda layers: True)
    got = impulse_responses([node for layer in layers for node in filters(layer)], 21)
    g = torch.randn(3, 3, 21, dtype=torch.float64)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    slopes = [torch.autograd.grad(K, own, list(g), materialize_grads=True) for K in (got, want)]
    for a, b in zip(*slopes, strict=True):
        assert_close(a, b, gradient=True)


def test_without_skip() -> None:
    compare(layer_of(skip=False), 9)


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize(("name", "value"), [("log_decay", -45.0), ("log_decay", 35.0), ("log_dt", -50.0)])
def test_held_parameters(name: str, value: float, discretisation: str) -> None:
    """On the unit circle, and where a parameter is held at the end of its range."""
    layer = layer_of(discretisation=discretisation)
    with torch.no_grad():
        getattr(layer, name)[1] = value
    compare(layer, 20)


def test_series_and_quotient_meet() -> None:
    """dt |lam| on both sides of the radius where the series ends, and at zero."""
    layer = layer_of(5, 2)
    with torch.no_grad():
        layer.log_decay.fill_(-30.0)
        layer.frequency.copy_(torch.tensor([[0.0], [0.4999], [0.5001], [1e-6], [3.0]]))  # type: ignore[union-attr]
        layer.log_dt.zero_()
    compare(layer, 7)


def test_float32_parameters_give_a_float64_response() -> None:
    layer = layer_of().float()
    K = response(layer, 40)
    assert K.dtype == torch.float64
    assert_close(K, answer(layer.double(), 40))


@pytest.mark.parametrize("layer", [layer_of(3, 4), S4(2, 4).double()], ids=["diagonal", "dense"])
def test_gradients_of_gradients(layer: S4D | S4) -> None:
    found = []
    own = list(layer.parameters())
    for K in (response(layer, 6), answer(layer, 6)):
        slopes = torch.autograd.grad(K.square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(sum(s.square().sum() for s in slopes), own))  # type: ignore[arg-type]
    for a, b in zip(*found, strict=True):
        assert_close(a, b, gradient=True)


def test_what_is_not_finite_stays_so() -> None:
    layer = layer_of()
    with torch.no_grad():
        layer.log_dt[2] = torch.nan
    bad = response(layer, 8).isnan().all(1)
    assert bad.tolist() == [False, False, True, False, False]


def test_real_states() -> None:
    compare(layer_of(init="real"), 9)
