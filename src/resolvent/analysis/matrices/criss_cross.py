"""How far a pseudospectrum reaches: to the right (abscissa) and from the origin (radius).

After the criss-cross search of Burke, Lewis and Overton (2003), for the radius in the form of Mengi and Overton (2005):
at the present level an eigenvalue problem of size 2n finds the points across where sigma_min(z - A) = eps; from the
midpoint of each interval inside, a root search goes outward to where that holds; repeat. It ends at the global maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.exact import Array
from resolvent.analysis.matrices.schur import Schur
from resolvent.analysis.matrices.sigma_min import sigma_min
from resolvent.analysis.valued import Valued

ROUNDS = 50
RTOL = 1e-12
NOISE = 1e-10  # relative accuracy of sigma_min, whose slope is about one
EPS = float(np.finfo(float).eps)
TURNS = (1.0, -1.0, 1j)


@dataclass(frozen=True)
class PseudospectralExtreme(Valued):
    """The largest Re z or |z| over the eps-pseudospectrum, and a point where it is reached.

    Examples:
        >>> found = rv.analysis.pseudospectral_abscissa(torch.diag(torch.tensor([-1.0, -2.0])), eps=0.1)
        >>> round(found.value, 3), found.converged
        (-0.9, True)
    """

    value: float
    point: complex
    rounds: int
    converged: bool


@dataclass(frozen=True)
class _Chart:
    """Coordinates of the plane: outward (x or r) and across (y or the angle)."""

    point: Callable[[Any, Any], Any]
    level: Callable[[float], Array]  # outward -> coordinates across where sigma = eps, and others
    cyclic: bool


def pseudospectral_abscissa(A: Matrix, eps: float) -> PseudospectralExtreme:
    """max Re z with sigma_min(z - A) <= eps: above zero, a perturbation of size eps makes x' = A x unstable.

    Examples:
        >>> A, B = rv.ssm.hippo("legs", 8)  # of a normal matrix with these eigenvalues it would be -1 + eps
        >>> rv.analysis.pseudospectral_abscissa(A, eps=0.1).value > -0.9
        True
    """
    matrix = _check("pseudospectral_abscissa", A, eps)
    chart = _half_planes(matrix, eps)
    start = max(np.linalg.eigvals(matrix), key=lambda lam: lam.real)
    return _ascend(matrix, eps, chart, float(start.real), float(start.imag))


def pseudospectral_radius(A: Matrix, eps: float) -> PseudospectralExtreme:
    """max |z| with sigma_min(z - A) <= eps: above one, a perturbation of size eps makes x_k = A x_{k-1} unstable.

    Examples:
        >>> round(rv.analysis.pseudospectral_radius(0.5 * torch.eye(2), eps=0.1).value, 3)
        0.6
    """
    matrix = _check("pseudospectral_radius", A, eps)
    chart = _discs(matrix, eps)
    start = max(np.linalg.eigvals(matrix), key=abs)
    return _ascend(matrix, eps, chart, abs(start), float(np.angle(start)))


def _ascend(A: Array, eps: float, chart: _Chart, value: float, across: float) -> PseudospectralExtreme:
    form, far = Schur.of(A), float(np.linalg.norm(A, 2)) + 2 * eps
    value, best = _outward(form, eps, chart, value, far, across), across
    for rounds in range(1, ROUNDS + 1):
        middles = _inside(form, eps, chart, value)
        reached = [(_outward(form, eps, chart, value, far, y), y) for y in middles]
        top, y = max(reached, default=(value, best))
        if top <= value + RTOL * max(abs(value), eps) + NOISE * eps:
            return PseudospectralExtreme(value, complex(chart.point(value, best)), rounds, True)
        value, best = top, y
    return PseudospectralExtreme(value, complex(chart.point(value, best)), ROUNDS, False)


def _outward(form: Schur, eps: float, chart: _Chart, value: float, far: float, across: float) -> float:
    """A point of the set in one direction between `value` and `far`, where sigma exceeds eps: one of its boundary."""
    from scipy.optimize import brentq

    def excess(x: float) -> float:
        return float(sigma_min(form, np.asarray([chart.point(x, across)]))[0]) - eps

    if value >= far or excess(value) >= 0:
        return value
    return float(brentq(excess, value, far, xtol=RTOL * max(abs(value), eps) / 4, rtol=4 * EPS))


def _inside(form: Schur, eps: float, chart: _Chart, value: float) -> list[float]:
    """The midpoint of each interval of the level inside the set."""
    cuts = np.sort(chart.level(value))
    if not len(cuts):
        return []
    if chart.cyclic:
        cuts = np.append(cuts, cuts[0] + 2 * math.pi)
    middle = (cuts[1:] + cuts[:-1]) / 2
    inside = sigma_min(form, chart.point(value, middle)) < eps if len(middle) else np.zeros(0, bool)
    if chart.cyclic and not inside.all():  # begin outside: no run is cut in two
        k = int(np.argmin(inside))
        cuts, inside = np.append(cuts[k:-1], cuts[: k + 1] + 2 * math.pi), np.roll(inside, -k)
    return [(cuts[a] + cuts[b]) / 2 for a, b in _runs(inside)]


def _runs(flags: Array) -> list[tuple[int, int]]:
    """First and last cut of each run of adjacent intervals inside."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _half_planes(A: Array, eps: float) -> _Chart:
    eye, H = np.eye(len(A)), A.conj().T

    def level(x: float) -> Array:
        """i y is an eigenvalue of the Hamiltonian matrix [[A - x, eps], [-eps, x - A*]]."""
        return np.unique(np.linalg.eigvals(np.block([[A - x * eye, eps * eye], [-eps * eye, x * eye - H]])).imag)

    return _Chart(lambda x, y: x + 1j * y, level, cyclic=False)


def _discs(A: Array, eps: float) -> _Chart:
    eye, zero = np.eye(len(A)), np.zeros_like(A)

    def level(r: float) -> Array:
        """w = exp(i t) is an eigenvalue of the pencil L - w R, L = [[A, eps], [0, r]] and R = [[r, 0], [eps, A*]].

        With w = (1 + m) / (1 - m) it is one of (L + R)^-1 (L - R) = m. A is turned such that L + R is regular.
        """
        turn = max(TURNS, key=lambda t: abs(float(np.linalg.svd(A + r * t * eye, compute_uv=False)[-1]) - eps))
        turned = A / turn
        L = np.block([[turned, eps * eye], [zero, r * eye]])
        R = np.block([[r * eye, zero], [eps * eye, turned.conj().T]])
        m = np.linalg.eigvals(np.linalg.solve(L + R, L - R))
        return np.unique(np.angle((1 + m) * (1 - m).conj() * turn))

    return _Chart(lambda r, t: r * np.exp(1j * t), level, cyclic=True)


def _check(where: str, A: Matrix, eps: float) -> Array:
    checks.check_real_number(where, "eps", eps)
    return checks.check_matrix(where, A).numpy()
