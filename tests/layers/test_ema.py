"""EMA against Mega's recurrence and kernel written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.ema import EMA


def averaged(layer: EMA, x: Tensor, direction: int = 0) -> Tensor:
    """h_t = p beta x_t + q h_{t-1}, then sum eta h / sqrt(n): Mega's equations, step by step."""
    p, delta = layer.alpha[direction].sigmoid(), layer.damping[direction].sigmoid()
    h, out = torch.zeros(x.shape[0], *p.shape, dtype=x.dtype), []
    for t in range(x.shape[1]):
        h = p * layer.beta[direction] * x[:, t, :, None] + (1 - p * delta) * h
        out.append((layer.eta[direction] * h).sum(-1) / math.sqrt(layer.d_state))
    return torch.stack(out, 1)


@pytest.mark.parametrize("silu", [False, True])
def test_recurrence_with_residual(silu: bool) -> None:
    layer, x = EMA(3, 16, silu=silu).double(), torch.randn(2, 150, 3, dtype=torch.float64)
    want = averaged(layer, x) + layer.omega * x
    assert_close(layer(x)[0], torch.nn.functional.silu(want) if silu else want)


def test_impulse_response_is_the_kernel() -> None:
    """k_l = sum p beta eta q^l / sqrt(n)."""
    layer = EMA(2, 4).double()
    u = torch.zeros(1, 100, 2, dtype=torch.float64)
    u[:, 0] = 1
    p, delta = layer.alpha[0].sigmoid(), layer.damping[0].sigmoid()
    powers = (1 - p * delta)[..., None] ** torch.arange(100)
    kernel = torch.einsum("dn,dnl->ld", p * layer.beta[0] * layer.eta[0], powers) / 2
    kernel[0] += layer.omega
    assert_close(layer(u)[0][0], kernel)


@pytest.mark.parametrize("silu", [False, True])
def test_backward_direction_has_its_own_parameters_and_includes_the_present(silu: bool) -> None:
    layer, x = EMA(3, 4, silu=silu, bidirectional=True).double(), torch.randn(2, 80, 3, dtype=torch.float64)
    assert layer.alpha.shape == (2, 3, 4)
    want = averaged(layer, x) + averaged(layer, x.flip(1), 1).flip(1) + layer.omega * x
    want = torch.nn.functional.silu(want) if silu else want
    assert_close(layer(x)[0], want)
    y, _ = layer(x, lengths=torch.tensor([80, 33]))
    assert_close(y[1:, :33], layer(x[1:, :33])[0])


def test_silu_applies_to_steps_too() -> None:
    layer, x = EMA(3, 4, silu=True).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    state, out = None, []
    for t in range(5):
        y_t, state = layer.step(x[:, t], state)
        out.append(y_t)
    assert_close(torch.stack(out, 1), layer(x)[0])


def test_start_is_megas() -> None:
    layer = EMA(400, 16)
    assert abs(float(layer.alpha.std()) - 0.2) < 0.01
    assert abs(float(layer.damping.std()) - 0.2) < 0.01
    sign = torch.tensor([1.0, -1.0]).repeat(8)
    assert float((layer.beta - sign).abs().max()) < 0.12
    assert abs(float(layer.eta.std()) - 1) < 0.05
    assert sum(p.numel() for p in layer.parameters()) == 400 * (4 * 16 + 1)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="d_state must be at least 1"):
        EMA(4, 0)
