"""Resolvent norms, pseudospectral extremes and the numerical range against definitions, grids and closed forms."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import scipy.linalg
import torch
from transfer_cases import C128, F64, dense

from helpers import assert_close
from resolvent.analysis import (
    numerical_range,
    pseudospectral_abscissa,
    pseudospectral_radius,
    pseudospectrum,
    resolvent_norm,
)
from resolvent.analysis.matrices.schur import Schur, solve, solve_adjoint
from resolvent.analysis.matrices.sigma_min import by_svd, sigma_min
from resolvent.ssm import hippo


def jordan(n: int, lam: float = 0.0) -> torch.Tensor:
    return lam * torch.eye(n, dtype=F64) + torch.diag(torch.ones(n - 1, dtype=F64), 1)


def grcar(n: int) -> torch.Tensor:
    ones = torch.ones(n, n, dtype=F64)
    return torch.triu(torch.tril(ones, 3), 0) - torch.diag(torch.ones(n - 1, dtype=F64), -1)


def random(n: int, complex_: bool = False) -> torch.Tensor:
    g = torch.Generator().manual_seed(n)
    return torch.randn(n, n, generator=g, dtype=C128 if complex_ else F64) / math.sqrt(n)


@pytest.mark.parametrize("n", [1, 5, 17, 40])
def test_triangular_solves_at_many_points(n: int) -> None:
    T = np.triu(random(n, complex_=True).numpy())
    z = np.asarray([2.0, 1j, -3 + 1j])
    b = np.arange(1.0, n + 1)[:, None]
    for k, point in enumerate(z):
        M = point * np.eye(n) - T
        np.testing.assert_allclose(solve(T, z, b)[:, k], np.linalg.solve(M, b)[:, 0], rtol=1e-8)
        np.testing.assert_allclose(solve_adjoint(T, z, b)[:, k], np.linalg.solve(M.conj().T, b)[:, 0], rtol=1e-8)


@pytest.mark.parametrize("A", [random(30), random(30, True), grcar(40), hippo("legs", 16)[0], jordan(20)])
def test_lanczos_finds_the_smallest_singular_value(A: torch.Tensor) -> None:
    form = Schur.of(A.numpy())
    assert np.linalg.norm(form.U @ form.T @ form.U.conj().T - A.numpy()) < 1e-12 * np.linalg.norm(A.numpy())
    z = np.random.default_rng(0).standard_normal((60, 2)) @ np.asarray([2, 2j])
    want = by_svd(form, z)
    visible = want > 1e-11 * np.linalg.norm(A.numpy())  # below it the singular values themselves are rounding
    assert visible.sum() > 20
    np.testing.assert_allclose(sigma_min(form, z)[visible], want[visible], rtol=1e-5)


def test_the_grid_holds_resolvent_norms() -> None:
    A = random(14)
    found = pseudospectrum(A, points=21)
    assert found.sigma.shape == (21, 21)
    for i, j in ((0, 0), (20, 3), (10, 10), (4, 17)):
        z = complex(found.re[j], found.im[i])
        inverse = torch.linalg.inv(z * torch.eye(14, dtype=C128) - A)
        assert float(found.resolvent_norm[i, j]) == pytest.approx(float(torch.linalg.matrix_norm(inverse, 2)), rel=1e-7)
    assert_close(found.sigma, found.sigma.flip(0), tolerance=1e-9)  # mirrored for a real matrix
    edges = (found.re[0], found.re[-1], found.im[0], found.im[-1])
    lam = found.eigenvalues
    assert bool((lam.real > edges[0]).all() & (lam.real < edges[1]).all())
    assert bool((lam.imag > edges[2]).all() & (lam.imag < edges[3]).all())


def test_normal_matrices_are_distances_to_the_spectrum() -> None:
    lam = torch.tensor([1.0 + 1j, -2.0, 0.5j], dtype=C128)
    found = pseudospectrum(torch.diag(lam), re=[-1.0, 0.0, 3.0], im=torch.tensor([0.25, 2.0]))
    z = found.re + 1j * found.im[:, None]
    assert_close(found.sigma, (z[..., None] - lam).abs().amin(-1))


def test_many_equal_singular_values_do_not_mislead_the_iteration() -> None:
    """A circulant and one with a small entry on top: distances to the roots of unity, moved by at most that entry."""
    n, z = 100, torch.tensor([2.0, 1.3 + 0.4j, 0.2j], dtype=torch.complex128)
    turn = torch.eye(n, dtype=F64).roll(1, 0)
    roots = torch.exp(2j * math.pi * torch.arange(n, dtype=F64) / n)
    want = 1 / (z[:, None] - roots).abs().amin(1)
    torch.testing.assert_close(resolvent_norm(turn, z), want, rtol=1e-10, atol=0)
    turn[0, 5] += 1e-9
    torch.testing.assert_close(resolvent_norm(turn, z), want, rtol=1e-7, atol=0)


def test_at_an_eigenvalue_the_resolvent_is_infinite() -> None:
    for n in (4, 20):
        assert math.isinf(float(resolvent_norm(torch.diag(torch.arange(1.0, n + 1)), 2.0)))
    assert float(resolvent_norm(torch.zeros(1, 1), 4.0)) == pytest.approx(0.25)


@pytest.mark.slow  # a time, which a busy machine spoils
def test_n_128_on_a_full_grid_is_seconds() -> None:
    start = time.process_time()
    pseudospectrum(random(128), points=30)
    assert time.process_time() - start < 3.0  # 900 of the 10,000 points of a picture


def edge_of(A: torch.Tensor, eps: float, top: float, *, radius: bool) -> float:
    """The farthest point of a fine grid in the upper half-plane that lies in the pseudospectrum."""
    x = np.linspace(-top, top, 201)
    z = (x[None, :] + 1j * x[100:, None]).ravel() if not A.is_complex() else (x[None, :] + 1j * x[:, None]).ravel()
    inside = z[sigma_min(Schur.of(A.numpy()), z) <= eps]
    return float(np.abs(inside).max() if radius else inside.real.max())


@pytest.mark.parametrize(("A", "eps"), [(jordan(4), 0.02), (random(8), 0.1), (random(6, True), 0.1), (grcar(10), 0.05)])
def test_criss_cross_against_a_fine_grid(A: torch.Tensor, eps: float) -> None:
    for search, radius in ((pseudospectral_abscissa, False), (pseudospectral_radius, True)):
        found = search(A, eps)
        assert found.converged
        assert float(1 / resolvent_norm(A, found.point)) == pytest.approx(eps, rel=1e-5)
        assert (abs(found.point) if radius else found.point.real) == pytest.approx(found.value)
        top = 1.02 * float(pseudospectral_radius(A, eps))
        on_grid = edge_of(A, eps, top, radius=radius)
        assert on_grid <= found.value + 1e-9
        assert found.value - on_grid < 2 * top / 200 * 1.5


@pytest.mark.parametrize("extreme", [pseudospectral_abscissa, pseudospectral_radius])
def test_the_reach_of_a_small_perturbation_is_first_order(extreme: object) -> None:
    """A simple eigenvalue with left and right vectors x, y moves by eps / |x* y|; a start beside it is not the end."""
    g = np.random.default_rng(1)
    A = torch.from_numpy(g.standard_normal((60, 60)) + 1j * g.standard_normal((60, 60))) / 10
    lam, left, right = scipy.linalg.eig(A.numpy(), left=True)
    size = lam.real if extreme is pseudospectral_abscissa else np.abs(lam)
    top = int(np.argmax(size))
    moved = 1e-8 / abs(np.vdot(left[:, top], right[:, top]))
    found = extreme(A, 1e-8)  # type: ignore[operator]
    assert found.value - size[top] == pytest.approx(moved, rel=1e-4)


def test_extremes_of_normal_matrices_move_by_eps() -> None:
    A = torch.diag(torch.tensor([-1.0 + 4j, 0.5 - 1j, -3.0], dtype=C128))
    assert float(pseudospectral_abscissa(A, 0.25)) == pytest.approx(0.75, rel=1e-12)
    assert float(pseudospectral_radius(A, 0.25)) == pytest.approx(math.sqrt(17) + 0.25, rel=1e-12)


def test_a_jordan_block_in_closed_form() -> None:
    """[[0, 1], [0, 0]]: |z| = sqrt(eps^2 + eps) is the edge, a disc."""
    for eps in (1e-6, 0.01, 2.0):
        want = math.sqrt(eps**2 + eps)
        assert float(pseudospectral_radius(jordan(2), eps)) == pytest.approx(want, rel=1e-8)
        assert float(pseudospectral_abscissa(jordan(2), eps)) == pytest.approx(want, rel=1e-8)


def test_the_search_leaves_a_local_maximum() -> None:
    """The rightmost eigenvalue is normal; another, further left but far from normal, reaches further."""
    A = torch.block_diag(torch.tensor([[1.0]], dtype=F64), jordan(6, 0.8) + 0j).to(C128)
    A[1:, 1:] += 3j * torch.eye(6)
    found = pseudospectral_abscissa(A, 0.01)
    assert found.value == pytest.approx(0.8 + float(pseudospectral_abscissa(jordan(6), 0.01)), rel=1e-9)
    assert found.point.imag == pytest.approx(3.0, abs=1e-6)


def test_the_numerical_range_of_a_jordan_block_is_a_disc() -> None:
    found = numerical_range(jordan(4))
    want = math.cos(math.pi / 5)
    assert_close(found.boundary.abs(), torch.full((180,), want, dtype=F64))
    assert found.abscissa == pytest.approx(want, rel=1e-14)
    assert found.radius_lower <= want * (1 + 1e-13)
    assert want <= found.radius_upper <= want * (1 + 1e-9)


def test_the_numerical_range_is_the_hull_of_rayleigh_quotients() -> None:
    A = random(5, complex_=True)
    found = numerical_range(A, points=64)
    x = torch.randn(5, 4000, dtype=C128)
    x = x / x.norm(dim=0)
    values = (x.conj() * (A @ x)).sum(0)
    for angle, support in zip(found.angles, found.support, strict=True):
        assert float((torch.exp(-1j * angle) * values).real.max()) <= float(support) + 1e-12
        edge = (torch.exp(-1j * angle) * found.boundary).real.max()
        assert float(edge) == pytest.approx(float(support), abs=1e-12)
    assert float(values.abs().max()) <= found.radius_upper
    assert found.radius_upper / found.radius_lower - 1 < 1e-9


def test_the_numerical_range_of_a_normal_matrix_is_the_hull_of_its_spectrum() -> None:
    A = torch.diag(torch.tensor([2.0, 1j, -1.0], dtype=C128))
    found = numerical_range(A)
    assert (found.abscissa, found.radius) == (pytest.approx(2.0), pytest.approx(2.0))
    one = numerical_range(torch.tensor([[-3.0]]))
    assert (one.abscissa, one.radius) == (pytest.approx(-3.0), pytest.approx(3.0))


def test_legs_never_grows_at_once() -> None:
    """W lies left of -1/2: A + A^T = -(B B^T + I)."""
    assert numerical_range(hippo("legs", 16)[0]).abscissa == pytest.approx(-0.5, abs=1e-12)


def test_bad_input() -> None:
    A = dense(3, discrete=True).A.dense()
    with pytest.raises(ValueError, match="eps must be above 0"):
        pseudospectral_abscissa(A, 0.0)
    with pytest.raises(ValueError, match="points must be at least 2"):
        pseudospectrum(A, points=1)
    with pytest.raises(ValueError, match="re is empty"):
        pseudospectrum(A, re=[])
    with pytest.raises(ValueError, match="must be one axis"):
        pseudospectrum(A, im=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="finite points"):
        resolvent_norm(A, [])
    with pytest.raises(ValueError, match="at least 3"):
        numerical_range(A, points=2)
    with pytest.raises(ValueError, match="one matrix"):
        numerical_range(torch.zeros(0, 0))
