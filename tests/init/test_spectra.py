"""First spectra against the closed forms and the computed frequencies of HiPPO-LegS."""

from __future__ import annotations

import math

import torch

from resolvent.init.spectra import inv, legs, lin, real
from resolvent.ssm.hippo import hippo


def test_lin_is_a_fourier_series_with_an_exact_zero_frequency() -> None:
    lam, B = lin(8)
    assert lam.tolist() == [complex(-0.5, math.pi * n) for n in range(4)]
    assert torch.equal(B, torch.ones(4, dtype=torch.complex128))


def test_inv_is_close_to_the_legs_frequencies() -> None:
    lam, _ = inv(64)
    expected = [64 / math.pi * (64 / (2 * n + 1) - 1) for n in range(32)]
    torch.testing.assert_close(lam.imag, torch.tensor(expected, dtype=torch.float64))
    assert abs(float(lam.imag[0]) - 1283.43) < 5e-3
    assert abs(float(lam.imag[1]) - 414.23) < 5e-3
    assert bool((lam.real == -0.5).all())


def test_legs_has_the_computed_frequencies() -> None:
    high = legs(64)[0].imag.sort(descending=True).values
    torch.testing.assert_close(high[:3], torch.tensor([1303.27384, 433.03076, 258.15221]).double(), rtol=1e-7, atol=0)
    low = legs(16)[0].imag.sort().values
    torch.testing.assert_close(low[:3], torch.tensor([0.35202, 1.37199, 2.89967]).double(), rtol=1e-5, atol=0)


def test_legs_keeps_all_of_B() -> None:
    """V is unitary, so both halves of V^* B_hippo together have the norm of B_hippo: nothing halved or clipped."""
    _, B = legs(32)
    torch.testing.assert_close(2 * (B.abs() ** 2).sum(), (hippo("legs", 32)[1] ** 2).sum())


def test_real_counts_down_from_minus_one() -> None:
    lam, B = real(3)
    assert lam.tolist() == [-1.0, -2.0, -3.0]
    assert B.tolist() == [1.0, 1.0, 1.0]
