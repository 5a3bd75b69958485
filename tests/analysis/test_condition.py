"""Condition numbers of eigenvectors: published values for LegS, closed forms, and matrices that have no basis."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from transfer_cases import F64, legs_diagonal

from resolvent.analysis import eigenvector_condition
from resolvent.analysis.matrices.extended import log10_condition
from resolvent.ssm import dplr, hippo

mpmath = pytest.importorskip("mpmath")


@pytest.mark.parametrize(
    ("n", "kappa"),
    [
        (2, 3.732051e0),
        (4, 8.611239e1),
        (8, 7.703242e4),
        (16, 8.319859e10),
        (24, 9.898567e16),
        (32, 1.219956e23),
        (48, 1.944381e35),
        (64, 3.200398e47),
    ],
)
def test_legs(n: int, kappa: float) -> None:
    found = eigenvector_condition(hippo("legs", n)[0])
    assert float(found) == pytest.approx(kappa, rel=3e-7)  # seven digits are published
    assert found.log10 == pytest.approx(math.log10(kappa), abs=1e-6)
    assert (found.digits > 16) == (n > 8)


def test_legs_of_order_two_by_hand() -> None:
    assert float(eigenvector_condition(hippo("legs", 2)[0])) == pytest.approx(2 + math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize(("n", "kappa"), [(4, 17.57), (16, 9.28e7)])
def test_legt(n: int, kappa: float) -> None:
    assert float(eigenvector_condition(hippo("legt", n)[0])) == pytest.approx(kappa, rel=6e-4)  # as published


def test_extended_precision_of_a_full_matrix_agrees_with_float64() -> None:
    A = np.random.default_rng(0).standard_normal((5, 5))
    want = np.linalg.cond(np.linalg.eig(A)[1])
    assert 10 ** log10_condition(A, 40) == pytest.approx(want, rel=1e-10)


def test_two_precisions_must_agree() -> None:
    """Eigenvalues 1 +- 1e-15: with twenty digits the value is off, and the function does not stop there."""
    A = torch.tensor([[1.0, 1.0], [1e-30, 1.0]], dtype=F64)
    few, many = log10_condition(A.numpy(), 20), log10_condition(A.numpy(), 100)
    assert abs(few - many) > 1e-2
    assert many == pytest.approx(15.0, abs=1e-10)
    assert eigenvector_condition(A).log10 == pytest.approx(many, abs=1e-8)


def test_a_kappa_beyond_the_largest_float() -> None:
    """[[0, 1], [0, e]]: V = [[1, 1], [0, e]] has kappa close to 2/e."""
    found = eigenvector_condition(torch.tensor([[0.0, 1e200], [0.0, 1e-200]], dtype=F64))
    assert found.log10 == pytest.approx(400 + math.log10(2), abs=1e-6)
    assert found.value == math.inf
    assert found.reason.startswith("beyond the largest float")


@pytest.mark.parametrize(
    "A",
    [
        torch.tensor([[5.0]]),
        torch.eye(3),
        torch.ones(4, 4),
        torch.roll(torch.eye(4), 1, 0),
        torch.block_diag(torch.roll(torch.eye(3), 1, 0), torch.roll(torch.eye(3), 1, 0)),
        torch.tensor([[0.0, 1.0], [-1.0, 0.0]]),
        torch.diag(dplr("legs", 8, halves=False)[0]),
    ],
    ids=["one", "identity", "ones", "cycle", "two cycles", "rotation", "diagonal"],
)
def test_normal_matrices_have_one(A: torch.Tensor) -> None:
    assert float(eigenvector_condition(A)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    "A",
    [
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
        torch.tensor([[1.0, 1e-17], [0.0, 1.0]], dtype=F64),
        torch.tensor([[1.0, 0.0], [1e-9, 1.0]], dtype=F64),
        torch.tensor([[3.0, 1.0], [-1.0, 1.0]]),
        torch.tensor([[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [0.0, 0.0, 3.0]]),
        hippo("lagt", 6)[0],
        torch.diag(torch.ones(3), -1),
    ],
    ids=["jordan", "small jordan", "lower", "full", "one of three", "lagt", "shift"],
)
def test_defective_is_infinite_with_a_reason(A: torch.Tensor) -> None:
    found = eigenvector_condition(A)
    assert found.value == found.log10 == math.inf
    assert found.reason == "defective: there is no basis of eigenvectors"


def test_repeated_eigenvalues_with_a_basis() -> None:
    """diag(1, 1) beside 3, coupled: kappa of the best basis, by hand and in a turned frame."""
    A = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 0.0, 3.0]], dtype=F64)
    third = torch.tensor([0.5, 1.0, 1.0], dtype=F64)
    V = torch.stack([*torch.eye(3, dtype=F64)[:2], third / third.norm()], -1)
    want = float(torch.linalg.cond(V))
    assert float(eigenvector_condition(A)) == pytest.approx(want, rel=1e-10)
    P = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=F64)
    assert float(eigenvector_condition(P @ A @ P.T)) == pytest.approx(want, rel=1e-10)


def test_nearly_defective_is_large_not_infinite() -> None:
    found = eigenvector_condition(torch.tensor([[1.0, 1.0], [1e-20, 1.0]], dtype=F64))
    assert float(found) == pytest.approx(1e10, rel=1e-6)


def test_a_system_is_taken_for_its_matrix() -> None:
    assert float(eigenvector_condition(legs_diagonal(8, torch.ones(1, 8, dtype=F64)))) == 1.0


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"one matrix \(n, n\) with n >= 1, got \(2, 3\)"):
        eigenvector_condition(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"index the bank, e\.g\. A\[0\]"):
        eigenvector_condition(torch.zeros(4, 2, 2))
    with pytest.raises(TypeError, match="expected a square matrix"):
        eigenvector_condition([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        eigenvector_condition(torch.full((2, 2), math.nan))
    with pytest.raises(ValueError, match="digits must be at least 17"):
        eigenvector_condition(torch.eye(2), digits=5)
    monkeypatch.setitem(sys.modules, "mpmath", None)
    with pytest.raises(ImportError, match="pip install mpmath"):
        eigenvector_condition(hippo("legs", 24)[0])
    assert float(eigenvector_condition(hippo("legs", 4)[0])) == pytest.approx(86.11239, rel=1e-6)
