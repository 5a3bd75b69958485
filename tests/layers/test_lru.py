"""LRU: the ring, its normalisation, and the published conventions (no delay, no factor 2, gamma trained freely)."""

from __future__ import annotations

import math

import agreement
import pytest
import torch

from helpers import assert_close
from resolvent.init.ring import normaliser, ring
from resolvent.layers.lru import LRU
from resolvent.scan import linear_scan


def scalar_lru(r: float, theta: float) -> LRU:
    """One channel, one state, B = C = 1 and D = 0."""
    layer = LRU(1, 1).double()
    with torch.no_grad():
        layer.nu_log.fill_(math.log(-math.log(r)))
        layer.theta_log.fill_(math.log(theta))
        layer.gamma_log.copy_(normaliser(layer.nu_log))
        layer.B.copy_(torch.tensor([1.0, 0.0]))
        layer.C.copy_(torch.tensor([1.0, 0.0]))
        layer.D.zero_()
    return layer


def test_ring_is_uniform_in_area() -> None:
    """r^2 is uniform on (.81, .998): mean .90400, and the deciles where a uniform law puts them."""
    nu_log, theta_log = ring(200_000, 0.9, 0.999, math.pi / 10, dtype=torch.float64)
    r_squared = torch.exp(-2 * nu_log.exp())
    error = 4 * (0.999**2 - 0.9**2) / math.sqrt(12 * 200_000)  # four standard deviations of the mean
    assert abs(r_squared.mean().item() - 0.9040005) < error
    assert r_squared.min() >= 0.81 - 1e-12
    assert r_squared.max() <= 0.998001 + 1e-12
    share = (r_squared - 0.81) / (0.998001 - 0.81)
    deciles = torch.quantile(share, torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
    assert (deciles - torch.linspace(0.1, 0.9, 9)).abs().max() < 0.006
    theta = theta_log.exp()
    assert 0 < theta.min() < theta.max() <= math.pi / 10 * (1 + 1e-12)
    assert abs(theta.mean().item() - math.pi / 20) < 4 * math.pi / 10 / math.sqrt(12 * 200_000)


@pytest.mark.parametrize("draw", [0.0, 1.0])
def test_ring_ends_are_finite(monkeypatch: pytest.MonkeyPatch, draw: float) -> None:
    monkeypatch.setattr(torch, "rand", lambda *s, **k: torch.full(s, min(draw, 1 - 2**-53), dtype=torch.float64))
    for parameter in ring(3, 0.0, 1.0):
        assert parameter.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r_min": -0.1}, "r_min"),
        ({"r_min": 0.9, "r_max": 0.9}, "r_max"),
        ({"r_max": 1.1}, "r_max"),
        ({"max_phase": 0.0}, "max_phase"),
        ({"max_phase": 7.0}, "2 pi"),
        ({"d_state": 0}, "d_state"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LRU(4, **settings)


def test_normaliser_is_exact_near_the_circle() -> None:
    for r in (0.1, 0.9, 0.999, 1 - 1e-9):
        nu_log = torch.tensor(math.log(-math.log(r)), dtype=torch.float64)
        want = 0.5 * (math.log1p(-r) + math.log1p(r))
        assert abs(normaliser(nu_log).item() - want) < 1e-6 * abs(want)  # log(-log r) itself holds 7 digits at 1 - 1e-9


def test_white_noise_gives_unit_variance() -> None:
    """E|h|^2 -> 1 for lam = .98 e^(.3 i). The estimate of 2e6 steps has a standard deviation below .01."""
    layer = scalar_lru(0.98, 0.3)
    x = torch.randn(20, 100_000, 1, dtype=torch.float64)
    lam, B_bar = layer.discrete()
    h = linear_scan(lam.detach(), x.to(B_bar.dtype) @ B_bar.detach().mT)
    assert abs(h[:, 500:].abs().square().mean().item() - 1) < 0.03


def test_impulse_response_is_a_damped_cosine() -> None:
    """Re(gamma lam^k) = gamma r^k cos(k theta): no delay, no factor 2."""
    r, theta = 0.95, 0.4
    x = torch.zeros(1, 50, 1, dtype=torch.float64)
    x[0, 0] = 1
    k = torch.arange(50, dtype=torch.float64)
    want = math.sqrt(1 - r**2) * r**k * torch.cos(theta * k)
    assert_close(scalar_lru(r, theta)(x)[0][0, :, 0], want)


def test_initial_values() -> None:
    layer = LRU(64, 512, r_min=0.5, r_max=0.9)
    lam, B_bar = layer.discrete()
    assert 0.5 <= lam.abs().min() < lam.abs().max() <= 0.9
    assert_close(layer.gamma_log.exp() ** 2 + lam.abs() ** 2, torch.ones(512))
    assert abs(layer.B.square().mean().item() * 2 * 64 - 1) < 0.05
    assert abs(layer.C.square().mean().item() * 512 - 1) < 0.05
    assert_close(B_bar.abs(), layer.gamma_log.exp()[:, None] * torch.view_as_complex(layer.B).abs())


def test_gamma_is_trained_on_its_own() -> None:
    """Moving nu later leaves gamma where it is."""
    layer, x = LRU(3, 4).double(), torch.randn(1, 6, 3, dtype=torch.float64)
    gamma = layer.gamma_log.detach().clone()
    layer(x)[0].sum().backward()
    assert layer.gamma_log.grad.abs().min() > 0
    with torch.no_grad():
        layer.nu_log += 1
    assert torch.equal(layer.gamma_log, gamma)


def test_modulus_survives_rounding() -> None:
    """exp(-exp(-30)) is exactly 1 in float32; the layer stays below it, and the state bounded for a constant input."""
    layer = LRU(2, 3)
    with torch.no_grad():
        layer.nu_log.fill_(-30.0)
    lam = layer.discrete()[0].detach().to(torch.complex128)
    assert (lam.abs() < 1).all()
    assert (lam.abs() > 1 - 2e-6).all()


def test_optimiser_groups_are_data() -> None:
    layer = LRU(4, 6, bidirectional=True)
    own, rest = sorted(layer.optim_groups(), key=len, reverse=True)
    assert {id(p) for p in own["params"]} == {id(p) for p in (layer.nu_log, layer.theta_log, layer.gamma_log, layer.B)}
    assert (own["lr"], own["weight_decay"]) == (5e-4, 0.0)
    assert {id(p) for p in rest["params"]} == {id(p) for p in (layer.C, layer.C_back, layer.D)}
    optimiser = torch.optim.AdamW(layer.optim_groups(), lr=1e-3, weight_decay=0.05)
    assert sorted((g["lr"], g["weight_decay"]) for g in optimiser.param_groups) == [(5e-4, 0.0), (1e-3, 0.05)]
    assert "lr" not in LRU(4, 6, lr=None).optim_groups()[0]


@pytest.mark.slow
def test_long_streaming_in_float32_stays_near_float64() -> None:
    agreement.check_long_stream(LRU(4, 8, r_min=0.99, r_max=0.999))
