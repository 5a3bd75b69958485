"""Contractions from free matrices: the identities that gains are built on, and bounds that are bounds."""

from __future__ import annotations

import pytest
import torch

from resolvent.ssm.contraction import (
    cap_norm,
    cayley,
    cayley_rows,
    hold_norm,
    inverse_defects,
    invert_lower,
    norm_bound,
    rounding_margin,
    solve_lower,
    spectral_norm,
)
from resolvent.ssm.part import Part, chained
from resolvent.ssm.system import Dense, System

F64 = torch.float64
SHAPES = [(1, 1), (1, 7), (7, 1), (5, 5), (3, 40), (40, 3)]


def largest(W: torch.Tensor) -> float:
    return float(torch.linalg.svdvals(W)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_norm_bound_is_an_upper_bound_and_tight(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    for scale in (1e-120, 1e-3, 1.0, 1e120):
        W = scale * torch.randn(shape, dtype=F64)
        share = float(norm_bound(W)) / largest(W)
        assert 1 - 1e-12 <= share <= min(shape) ** (1 / 128) + 1e-12
    assert abs(float(norm_bound(torch.eye(min(shape), dtype=F64))) - min(shape) ** (1 / 128)) < 1e-12
    assert float(norm_bound(torch.zeros(shape, dtype=F64))) < 1e-100


def test_norm_bound_has_second_derivatives_where_singular_values_tie() -> None:
    W = torch.eye(3, dtype=F64).requires_grad_()
    (slope,) = torch.autograd.grad(norm_bound(W), W, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), W)
    assert second.isfinite().all()
    assert torch.autograd.gradcheck(norm_bound, (torch.randn(4, 3, dtype=F64, requires_grad=True),))


def test_capped_leaves_small_matrices_alone() -> None:
    W = 0.5 * torch.eye(3, dtype=F64)
    assert torch.equal(cap_norm(W), W)
    assert largest(cap_norm(1e3 * torch.randn(4, 6, dtype=F64), 2.5)) <= 2.5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_contraction_and_its_defect(shape: tuple[int, int], scale: float) -> None:
    """K^T K + (L^-1)(L^-T) = I, and K is strictly below one."""
    torch.manual_seed(1)
    X = hold_norm(scale * torch.randn(shape, dtype=F64))
    defect = inverse_defects(X)[0]
    K = X @ defect.mT
    assert (K.mT @ K + defect @ defect.mT - torch.eye(shape[1], dtype=F64)).abs().max() < 1e-9
    assert largest(K) <= 1 + 1e-12
    want = torch.linalg.svdvals(X)
    assert (torch.linalg.svdvals(K) - want / (1 + want**2).sqrt()).abs().max() < 1e-9


@pytest.mark.parametrize("n", [1, 2, 7, 12, 24, 64])
def test_a_triangle_is_inverted_by_halves(n: int) -> None:
    torch.manual_seed(0)
    free = torch.randn(3, n, n, dtype=torch.float64)
    L = torch.linalg.cholesky(free @ free.mT + torch.eye(n))
    S = invert_lower(L, 3)
    assert torch.equal(S, S.tril())
    torch.testing.assert_close(S, torch.linalg.inv(L), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(torch.vmap(lambda t: invert_lower(t, 3))(L), S)


def test_inverse_defects_have_the_slopes_of_a_factorisation_and_a_solution() -> None:
    """First and second derivatives, forwards and backwards, of what torch's own factorisation gives."""
    torch.manual_seed(3)
    free = [torch.randn(r, 4, dtype=F64, requires_grad=True) for r in (6, 4, 2)]
    weight = torch.randn(3, 4, 4, dtype=F64)

    def by_torch(*own: torch.Tensor) -> torch.Tensor:
        eye = torch.eye(4, dtype=F64)
        return torch.stack([solve_lower(torch.linalg.cholesky(eye + X.mT @ X), eye) for X in own])

    found, want = inverse_defects(*free), by_torch(*free)
    assert (found - want).abs().max() < 1e-12
    for got, right in zip(*(torch.autograd.grad((t * weight).sum(), free) for t in (found, want)), strict=True):
        assert (got - right).abs().max() < 1e-12
    assert torch.autograd.gradcheck(inverse_defects, free, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(inverse_defects, free)


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e3, 1e8])
def test_cayley_forms(scale: float) -> None:
    torch.manual_seed(2)
    Q = cayley(scale * torch.randn(6, 6, dtype=F64))
    assert (Q @ Q.mT - torch.eye(6)).abs().max() < 1e-10
    A, B = cayley_rows(scale * torch.randn(6, 6, dtype=F64), scale * torch.randn(4, 6, dtype=F64))
    assert (A @ A.mT + B @ B.mT - torch.eye(6)).abs().max() < 1e-9
    assert spectral_norm(torch.cat([A, B], 1)) < 1 + 1e-9


def test_rounding_margin_covers_float32() -> None:
    """Orthogonal matrices, scaled and rounded, stay contractions; without the scaling they do not."""
    torch.manual_seed(3)
    over = 0
    for n in (2, 16, 200):
        K = torch.linalg.qr(torch.randn(n, n, dtype=F64))[0]
        assert spectral_norm((rounding_margin(n) * K).float()) <= 1
        over += spectral_norm(K.float()) > 1
    assert over


def test_spectral_norm_of_nothing() -> None:
    assert spectral_norm(torch.zeros(3, 0)) == 0
    assert spectral_norm(torch.tensor([[3.0, 4.0]])) == 5


def test_parts_compose() -> None:
    system = System(Dense(torch.zeros(1, 1)), torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1), 1.0)
    two = Part("two", "linear", 2.0)
    lti = Part("lti", "system", None, system)
    residual = Part("block", "residual", parts=(two, lti))
    both = Part("both", "sum", parts=(two, residual))
    series = Part("series", "series", parts=(both, two))
    gains = {"constant": lambda s: 3.0}
    assert residual.constant(gains["constant"]) == 7
    assert chained([series, two], gains["constant"]) == (2 + 7) * 2 * 2
    assert [p.name for p in series.leaves()] == ["two", "two", "lti", "two"]
    broken = Part("norm", "norm", None, reason="divides")
    assert chained([two, Part("b", "residual", parts=(broken,))], gains["constant"]) is None
    assert [p.reason for p in Part("b", "residual", parts=(two, broken, lti)).unbounded()] == ["divides"]
    assert Part("s", "sum", parts=(two, broken)).constant(gains["constant"]) is None
