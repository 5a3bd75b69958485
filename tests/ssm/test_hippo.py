"""HiPPO matrices against their closed-form impulse responses, published spectra and Padé's rational functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch

from helpers import assert_close
from resolvent.ssm import dplr, hippo, nplr
from resolvent.ssm.hippo import NAMES

RANK = {"legs": 1, "legt": 2, "lagt": 1, "fout": 1}


def response(name: str, n: int, s: complex, C: np.ndarray) -> complex:
    A, B = (t.numpy() for t in hippo(name, n))
    return complex(C @ np.linalg.solve(s * np.eye(n) - A, B))


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 3.0])
def test_legs_remembers_by_legendre_polynomials_of_exponential_time(t: float) -> None:
    A, B = (m.numpy() for m in hippo("legs", 12))
    n = np.arange(12)
    want = np.exp(-t) * np.sqrt(2 * n + 1) * scipy.special.eval_legendre(n, 2 * np.exp(-t) - 1)
    np.testing.assert_allclose(scipy.linalg.expm(t * A) @ B, want, atol=1e-12)


@pytest.mark.parametrize("t", [0.0, 0.5, 2.0, 7.0])
def test_lagt_remembers_by_laguerre_functions(t: float) -> None:
    A, B = (m.numpy() for m in hippo("lagt", 12))
    want = np.exp(-t / 2) * scipy.special.eval_laguerre(np.arange(12), t)
    np.testing.assert_allclose(scipy.linalg.expm(t * A) @ B, want, atol=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("s", [0.3 + 0.2j, 1j, -0.1 + 2j])
def test_legt_read_at_the_far_end_is_the_pade_delay(n: int, s: complex) -> None:
    """The window is two long: its far end approximates u(t - 2) by the [n-1/n] Padé quotient of exp(-2 s)."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        top, bottom = mp.pade([mp.mpf(-2) ** k / mp.factorial(k) for k in range(2 * n)], n - 1, n)
        want = complex(mp.polyval(top[::-1], s) / mp.polyval(bottom[::-1], s))
    C = (-1.0) ** np.arange(n) * np.sqrt(2 * np.arange(n) + 1)
    assert response("legt", n, s, C) == pytest.approx(want, abs=1e-13)


@pytest.mark.parametrize("n", [2, 6, 16])
@pytest.mark.parametrize("s", [0.7, 0.3 + 0.4j, 5j])
def test_fout_is_a_comb_of_oscillators_under_unit_feedback(n: int, s: complex) -> None:
    comb = 1 / s + sum(2 * s / (s * s + (math.pi * j) ** 2) for j in range(1, n // 2))
    B = hippo("fout", n)[1].numpy()
    assert response("fout", n, s, B) == pytest.approx(comb / (1 + comb), abs=1e-12)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_legs_spectrum_and_direct_current(n: int) -> None:
    A, B = hippo("legs", n)
    assert torch.equal(torch.diagonal(A), -torch.arange(1.0, n + 1, dtype=torch.float64))
    assert torch.equal(torch.triu(A, 1), torch.zeros_like(A))
    e0 = torch.eye(n, dtype=torch.float64)[0]
    assert_close(torch.linalg.solve(A, B), -e0)


@pytest.mark.parametrize("n", [3, 4, 16])
def test_legt_direct_current(n: int) -> None:
    A, B = hippo("legt", n)
    assert_close(torch.linalg.solve(A, B), -torch.eye(n, dtype=torch.float64)[0])


@pytest.mark.parametrize(("n", "norm"), [(4, 10.28), (8, 40.81), (16, 163.0), (32, 652.0), (64, 2608), (128, 1.043e4)])
def test_legs_norm(n: int, norm: float) -> None:
    assert float(torch.linalg.matrix_norm(hippo("legs", n)[0], 2)) == pytest.approx(norm, rel=5e-4)  # four digits known


@pytest.mark.parametrize(
    ("n", "largest"),
    [(4, 4.60329), (16, 80.96608), (32, 325.426), (64, 1303.27384), (128, 5214.67), (256, 20860.23)],
)
def test_legs_largest_frequency(n: int, largest: float) -> None:
    lam, *_ = dplr("legs", n)
    assert float(lam.imag[-1]) == pytest.approx(largest, rel=2e-6)  # as many digits as are published
    assert torch.equal(lam.real, torch.full((n // 2,), -0.5, dtype=torch.float64))
    assert bool((lam.imag.diff() > 0).all())


def test_legs_inner_frequencies() -> None:
    w16, w64 = dplr("legs", 16)[0].imag, dplr("legs", 64)[0].imag
    want = [0.35202, 1.37199, 2.89967, 13.83434, 25.62923, 80.96608]
    np.testing.assert_allclose(w16[[0, 1, 2, -3, -2, -1]], want, atol=5e-6)  # five decimals are published
    np.testing.assert_allclose(w64[[0, -3, -2, -1]], [0.26386, 258.15221, 433.03076, 1303.27384], atol=5e-6)
    assert float(dplr("legs", 4)[0].imag[0]) == pytest.approx(0.55650, abs=5e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 4, 16, 64])
def test_low_rank_correction_leaves_a_normal_matrix(name: str, n: int) -> None:
    A, _, P = nplr(name, n)
    assert P.shape == (n, RANK[name])
    S = A + P @ P.mT
    shift = 0.5 * torch.eye(n, dtype=torch.float64) if name == "legs" else torch.zeros(n, n, dtype=torch.float64)
    assert_close(S + shift, -(S + shift).mT)
    assert_close(S @ S.mT, S.mT @ S)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 4, 16, 64, 128])
def test_dplr_is_a_unitary_change_of_basis(name: str, n: int) -> None:
    A, B = hippo(name, n)
    lam, P, b, V = dplr(name, n, halves=False)
    assert_close(V.mH @ V, torch.eye(n, dtype=V.dtype))
    assert_close(V @ (torch.diag(lam) - P @ P.mH) @ V.mH, A.to(V.dtype))
    assert_close(V @ b, B.to(V.dtype))
    assert float(b.imag.abs().max()) < 1e-13
    assert bool((b.real > 0).all())


@pytest.mark.parametrize("name", NAMES)
def test_halves_are_the_first_half_of_the_full_form(name: str) -> None:
    half, full = dplr(name, 16), dplr(name, 16, halves=False)
    for h, f in zip(half[:3], full[:3], strict=True):
        assert torch.equal(h, f[:8])
        assert torch.equal(h.conj(), f[8:])
    assert torch.equal(half[3], full[3][:, :8])
    assert bool((half[0].imag >= 0).all())


@pytest.mark.parametrize(
    ("name", "n", "error", "words"),
    [
        ("LegS", 4, ValueError, "did you mean 'legs'"),
        ("chebyshev", 4, ValueError, "'legs', 'legt', 'lagt', 'fout'"),
        ("legs", 0, ValueError, "at least 1, got 0"),
        ("legs", 2.0, TypeError, "whole number"),
        ("legs", True, TypeError, "whole number"),
        ("fout", 5, ValueError, "use 6"),
    ],
)
def test_bad_input(name: str, n: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        hippo(name, n)


def test_pairs_need_an_even_size() -> None:
    with pytest.raises(ValueError, match=r"n must be even.*got 5; use 6"):
        dplr("legs", 5)
