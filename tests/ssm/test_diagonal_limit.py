"""What the diagonal models keep of LegS: published transfer functions and kernels in closed form.

G_dplr(s) = C (s I - A)^-1 B, and G_diag(s) = C V (s I - diag(lam))^-1 V^* B / 2 drops the low-rank term.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import assert_close
from resolvent.ssm import (
    Diagonal,
    System,
    dense_kernel,
    diagonal_step,
    discretise,
    dplr,
    hippo,
    kernel,
    vandermonde_kernel,
)


def transfer(n: int, row: int, w: np.ndarray, scale: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """G_diag and G_dplr at s = i w for C = e_row; both in the eigenbasis, the low-rank term by Woodbury."""
    lam, P, b, V = (t.numpy() for t in dplr("legs", n, halves=False))
    R = 1 / (1j * w[:, None] - lam)  # (w, n)
    c = V[row]
    diag = (R * (c * b)).sum(1)
    p = P[:, 0]
    low = (R * (c * p)).sum(1) * (R * (p.conj() * b)).sum(1) / (1 + (R * (p.conj() * p)).sum(1))
    return scale * diag, diag - low


def test_woodbury_in_this_file_is_the_dense_transfer_function() -> None:
    A, B = (t.numpy() for t in hippo("legs", 8))
    w = np.array([0.0, 1.0, 19.857])
    want = [np.linalg.solve(1j * x * np.eye(8) - A, B)[7] for x in w]
    np.testing.assert_allclose(transfer(8, 7, w)[1], want, atol=1e-13)


@pytest.mark.parametrize(
    ("n", "first", "last", "without_half"),
    [
        (4, 0.65136, 1.1187, 1.5146),
        (8, 0.64379, 2.1840, 1.3379),
        (32, 0.63713, 5.0101, 1.2773),
        (64, 0.63675, 7.1588, 1.2743),
    ],
)
def test_the_spike_does_not_vanish(n: int, first: float, last: float, without_half: float) -> None:
    top = float(dplr("legs", n)[0].imag[-1])
    w = top + np.linspace(-0.5, 0.5, 4001)
    for row, scale, want in ((0, 0.5, first), (n - 1, 0.5, last), (0, 1.0, without_half)):
        diag, full = transfer(n, row, w, scale)
        assert np.abs(diag - full).max() == pytest.approx(want, rel=6e-5)  # five digits are published


@pytest.mark.parametrize("n", [4, 8, 32, 64])
def test_the_last_channel_passes_at_most_one_over_root_2n_minus_1(n: int) -> None:
    w = np.concatenate([np.linspace(0, 5, 500), np.geomspace(5, 1e5, 4000), 1e7 + np.zeros(1)])
    G = np.abs(transfer(n, n - 1, w)[1])
    assert G.max() == pytest.approx(1 / math.sqrt(2 * n - 1), rel=1e-4)  # reached between the nodes of the grid


@pytest.mark.parametrize(("n", "difference"), [(8, 7.804e-2), (32, 2.276e-2), (64, 1.113e-2), (256, 2.754e-3)])
def test_weak_convergence_at_a_fixed_frequency(n: int, difference: float) -> None:
    diag, full = transfer(n, 0, np.array([1.0, 0.0]))
    assert abs(diag[0] - full[0]) == pytest.approx(difference, rel=2e-4)
    assert abs(diag[1] - full[1]) < 1e-11


def test_without_the_half_the_gain_at_zero_is_off_by_c0() -> None:
    for row, c0 in ((0, 1.0), (3, 0.0)):
        diag, full = transfer(8, row, np.array([0.0]), scale=1.0)
        assert abs(diag[0] - full[0]) == pytest.approx(c0, abs=1e-12)


def test_inverse_initialisation_approximates_legs() -> None:
    n = 64
    inverse = n / math.pi * (n / (2 * np.arange(n // 2) + 1) - 1)
    w = dplr("legs", n)[0].imag.flip(0).numpy()
    np.testing.assert_allclose(inverse[:2], [1283.43, 414.23], atol=5e-3)
    np.testing.assert_allclose(w[:2], [1303.27, 433.03], atol=5e-3)


@pytest.mark.parametrize("spectrum", ["lin", "legs", "real"])
def test_s4d_kernel_is_the_closed_form_and_the_dense_recurrence(spectrum: str) -> None:
    """K_l = 2 Re sum C B (exp(dt lam) - 1)/lam exp(l dt lam)."""
    n, dt, length = 16, 0.03, 200
    lam = {
        "lin": -0.5 + 1j * math.pi * torch.arange(n, dtype=torch.float64),
        "legs": dplr("legs", 2 * n)[0],
        "real": -torch.arange(1.0, n + 1, dtype=torch.float64).to(torch.complex128),
    }[spectrum]
    C = torch.randn(n, dtype=torch.complex128)
    gain = (torch.exp(dt * lam) - 1) / lam
    l = torch.arange(length, dtype=torch.float64)
    want = 2 * (C * gain * torch.exp(l[:, None] * dt * lam)).sum(-1).real
    lam_bar, held = diagonal_step(lam, torch.tensor(dt, dtype=torch.float64))
    assert_close(vandermonde_kernel(lam_bar, C * held, length, halves=True), want, tolerance=1e-12)
    ones, zero = torch.ones(n, 1, dtype=torch.complex128), torch.zeros(1, 1)
    system = discretise(System(Diagonal(lam), ones, 2 * C[None], zero), dt)
    assert_close(dense_kernel(system.dense(), length)[0, 0].real, want, tolerance=1e-12)
    assert_close(kernel(system, length)[0, 0].real, want, tolerance=1e-12)


def test_dss_kernels_in_closed_form() -> None:
    """DSS-exp is the zero-order hold with B = 1; its softmax form sums a geometric series of the same length."""
    lam, dt, length = dplr("legs", 16)[0], 0.05, 60
    W = torch.randn(8, dtype=torch.complex128)
    l = torch.arange(length, dtype=torch.float64)
    table = torch.exp(l[:, None] * dt * lam)  # (l, n)
    lam_bar, held = diagonal_step(lam, torch.tensor(dt, dtype=torch.float64))
    exponential = (W * (torch.exp(lam * dt) - 1) / lam * table).sum(-1).real
    assert_close(vandermonde_kernel(lam_bar, W * held, length).real, exponential, tolerance=1e-12)
    softmax = (W / lam * table / table.sum(0)).sum(-1).real
    closed = W * (torch.exp(lam * dt) - 1) / (lam * (torch.exp(length * lam * dt) - 1))
    assert_close(vandermonde_kernel(lam_bar, closed, length).real, softmax, tolerance=1e-12)
