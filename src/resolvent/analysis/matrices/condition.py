"""The condition number of the eigenvectors: how much diagonalising a matrix may amplify errors.

    kappa(V) = ||V|| ||V^-1||,    A = V diag(lam) V^-1 with unit columns

1 for a normal A; for HiPPO-LegS it grows like 5.83^n, so from n = 20 on float64 has no correct digit. Then it is
computed in extended precision and again with twice the digits, until both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.exact import Array
from resolvent.analysis.matrices.extended import log10_condition
from resolvent.analysis.valued import Valued
from resolvent.usage import numbers

RTOL = 1e-8  # to which two precisions must agree
FLOAT = 1e-5  # tolerated effect of rounding on a float64 result
FIRST, SURE, LAST = 40, 160, 640  # digits
EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class EigenvectorCondition(Valued):
    """kappa_2(V). `log10` is valid also beyond the largest float; `digits` is 16 for float64.

    Examples:
        >>> rv.analysis.eigenvector_condition(torch.diag(torch.tensor([1.0, 2.0]))).value
        1.0
    """

    value: float
    log10: float
    digits: int
    reason: str = ""


def eigenvector_condition(A: Matrix, digits: int | None = None) -> EigenvectorCondition:
    """kappa of unit eigenvectors of A, accurate to eight digits (five in float64).

    Infinite, with a reason, for a defective A. Repeated eigenvalues get orthonormal eigenvectors. `digits` forces one
    computation in that precision without the check. Extended precision needs mpmath.

    Examples:
        >>> rv.analysis.eigenvector_condition(rv.ssm.hippo("legs", 8)[0]).log10 > 4
        True
    """
    matrix = checks.check_matrix("eigenvector_condition", A).numpy()
    if digits is not None:
        numbers.check_count("eigenvector_condition", 17, digits=digits)
        return _answer(log10_condition(matrix, digits), digits)
    with np.errstate(over="ignore", invalid="ignore"):  # norms of entries beyond 1e150 do not matter here
        if _normal(matrix):
            return EigenvectorCondition(1.0, 0.0, 16)
        value = _in_float64(matrix)
    if value is not None:
        return EigenvectorCondition(value, math.log10(value), 16)
    return _in_extended(matrix)


def _normal(A: Array) -> bool:
    """Diagonal, or a (skew-)Hermitian matrix plus a multiple of the identity, exactly: eigenvalues may then repeat."""
    if not (A - np.diag(np.diagonal(A))).any():
        return True
    parts = (A + A.conj().T) / 2, (A - A.conj().T) / 2
    return any(not (part - part[0, 0] * np.eye(len(A))).any() for part in parts)


def _in_float64(A: Array) -> float | None:
    """kappa if an error of rounding size in A changes it by less than FLOAT; None otherwise."""
    lam, V = np.linalg.eig(A)
    sigma = np.linalg.svd(V / np.linalg.norm(V, axis=0), compute_uv=False)
    gap = np.abs(lam[:, None] - lam[None, :]) + np.diag(np.full(len(lam), np.inf))
    moved = EPS * float(np.linalg.norm(A)) * float(sigma[0])
    return float(sigma[0] / sigma[-1]) if moved < FLOAT * float(sigma[-1]) * float(gap.min()) else None


def _in_extended(A: Array) -> EigenvectorCondition:
    """Twice the digits until two results agree: on a value, or from 160 digits on that it is infinite."""
    digits, last = FIRST, log10_condition(A, FIRST)
    while digits < LAST:
        digits *= 2
        now = log10_condition(A, digits)
        if math.isfinite(now) and abs(now - last) < RTOL:
            return _answer(now, digits)
        if digits >= SURE and (now == last or _grows_with(digits, last, now)):
            break
        last = now
    return _answer(math.inf, digits)


def _grows_with(digits: int, last: float, now: float) -> bool:
    """A defective eigenvalue, split by rounding, gives a kappa whose exponent grows with the digits."""
    return now > 1.6 * last > 0.1 * digits


def _answer(log10: float, digits: int) -> EigenvectorCondition:
    if math.isinf(log10):
        return EigenvectorCondition(math.inf, math.inf, digits, "defective: there is no basis of eigenvectors")
    return EigenvectorCondition(10**log10 if log10 < 308 else math.inf, log10, digits,
                                "" if log10 < 308 else "beyond the largest float: see log10")  # fmt: skip
