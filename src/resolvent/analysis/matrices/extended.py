"""Eigenvectors in extended precision: their condition number beyond the precision of float64.

A triangular matrix (HiPPO-LegS, LagT) has its eigenvalues on the diagonal and its eigenvectors by substitution, n^3/6
operations; any other goes through mpmath's QR iteration, which takes seconds for n = 16 and minutes for n = 64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resolvent.analysis.matrices.exact import Array


def mpmath_module() -> Any:
    try:
        import mpmath
    except ImportError as error:
        raise ImportError(
            "This matrix needs extended precision, which comes from mpmath; install it with `pip install mpmath`."
        ) from error
    return mpmath


def log10_condition(A: Array, digits: int) -> float:
    """log10 of kappa_2(V) for unit eigenvectors V of A, computed with this many digits; infinite for a defective A."""
    mp = mpmath_module()
    with mp.workdps(digits):
        upper = _as_upper(A)
        V = _general(mp, A, digits) if upper is None else _triangular(mp, upper, digits)
        if V is None:
            return math.inf
        inverse = mp.inverse(mp.matrix(V)).tolist() if upper is None else _inverse_of_upper(mp, V)
        return _log10_norm(mp, V) + _log10_norm(mp, inverse)


def _as_upper(A: Array) -> Array | None:
    """A in upper triangular form, by reversing its order if necessary; None if it is not triangular."""
    if not np.tril(A, -1).any():
        return A
    return None if np.triu(A, 1).any() else A[::-1, ::-1]


def _triangular(mp: Any, T: Array, digits: int) -> list[list[Any]] | None:
    """Rows of V by back substitution: (T_ii - lam_k) v_i = -sum_j T_ij v_j. None if T is defective.

    A repeated eigenvalue has further eigenvectors if the right side vanishes; these are made orthogonal, from the
    first to the last, which leaves V upper triangular.
    """
    n = len(T)
    rows = [[_number(mp, x) for x in row] for row in T]
    columns: list[list[Any]] = []
    nothing = mp.mpf(10) ** (-digits // 2)
    for k in range(n):
        v = [mp.mpf(0)] * k + [mp.mpf(1)]
        for i in range(k - 1, -1, -1):
            right = -mp.fdot(rows[i][i + 1 : k + 1], v[i + 1 :])
            gap = rows[i][i] - rows[k][k]
            if gap == 0:
                if abs(right) > nothing * max(abs(x) for x in v):
                    return None
                continue
            v[i] = right / gap
        for earlier in (c for j, c in enumerate(columns) if rows[j][j] == rows[k][k]):
            along = mp.fdot(v[: len(earlier)], earlier, conjugate=True)
            v = [x - along * e for x, e in zip(v, earlier, strict=False)] + v[len(earlier) :]
        columns.append(_unit(mp, v))
    return [[columns[k][i] if i <= k else mp.mpf(0) for k in range(n)] for i in range(n)]


def _inverse_of_upper(mp: Any, V: list[list[Any]]) -> list[list[Any]]:
    """Column by column, by back substitution."""
    n = len(V)
    columns = []
    for k in range(n):
        x = [mp.mpf(0)] * k + [1 / V[k][k]]
        for i in range(k - 1, -1, -1):
            x[i] = -mp.fdot(V[i][i + 1 : k + 1], x[i + 1 :]) / V[i][i]
        columns.append(x + [mp.mpf(0)] * (n - k - 1))
    return [[columns[k][i] for k in range(n)] for i in range(n)]


def _general(mp: Any, A: Array, digits: int) -> list[list[Any]] | None:
    """Rows of V from mpmath's QR iteration; equal eigenvalues get orthogonal vectors; None if there are too few."""
    n = len(A)
    lam, V = mp.eig(mp.matrix([[_number(mp, x) for x in row] for row in A]))
    close = mp.mpf(10) ** (-digits // 3) * max(1e-300, float(np.linalg.norm(A)))
    columns: list[list[Any]] = []
    for k in range(n):
        v = _unit(mp, [V[i, k] for i in range(n)])
        for earlier in (c for j, c in enumerate(columns) if abs(lam[j] - lam[k]) < close):
            along = mp.fdot(v, earlier, conjugate=True)
            v = [x - along * e for x, e in zip(v, earlier, strict=True)]
        if _size(mp, v) < mp.mpf(10) ** (-digits // 4):
            return None
        columns.append(_unit(mp, v))
    return [[columns[k][i] for k in range(n)] for i in range(n)]


def _size(mp: Any, v: list[Any]) -> Any:
    return mp.sqrt(mp.fsum(v, absolute=True, squared=True))


def _unit(mp: Any, v: list[Any]) -> list[Any]:
    size = _size(mp, v)
    return [x / size for x in v]


def _log10_norm(mp: Any, rows: list[list[Any]]) -> float:
    """log10 ||M||_2: scaled by its largest entry the norm is computed in float64, whatever its size."""
    top = max(abs(x) for row in rows for x in row)
    scaled = np.asarray([[complex(x / top) for x in row] for row in rows])
    return float(mp.log10(top)) + math.log10(float(np.linalg.norm(scaled, 2)))


def _number(mp: Any, x: Any) -> Any:
    """A float64, converted exactly."""
    return mp.mpf(float(x.real)) if np.imag(x) == 0 else mp.mpc(float(x.real), float(x.imag))
