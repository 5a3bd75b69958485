"""How far a pseudospectrum reaches: to the right (abscissa) and from the origin (radius).

The criss-cross search of Burke, Lewis and Overton (2003), for the radius in the form of Mengi and Overton (2005):
at the present level an eigenvalue problem of size 2n finds the points across where sigma_min(z - A) = eps; from the
midpoint of each interval inside, another one finds how far out the set extends; repeat. It ends at the global maximum.
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
    reach: Callable[[float], Array]  # across -> outward coordinates where sigma = eps, and others
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
    form = Schur.of(A)
    value, best = _outward(form, eps, chart, value, across), across
    for rounds in range(1, ROUNDS + 1):
        middles = _inside(form, eps, chart, value)
        reached = [(_outward(form, eps, chart, value, y), y) for y in middles]
        top, y = max(reached, default=(value, best))
        if top <= value + RTOL * max(abs(value), eps):
            return PseudospectralExtreme(value, complex(chart.point(value, best)), rounds, True)
        value, best = top, y
    return PseudospectralExtreme(value, complex(chart.point(value, best)), ROUNDS, False)


def _outward(form: Schur, eps: float, chart: _Chart, value: float, across: float) -> float:
    """The farthest point of the set in one direction, not below `value`; every candidate is checked by its sigma."""
    found = chart.reach(across)
    steps = np.sort(found[found > value])[::-1]
    if len(steps):
        inside = steps[sigma_min(form, chart.point(steps, across)) <= eps * (1 + 1e-7)]
        return float(inside[0]) if len(inside) else value
    return value


def _inside(form: Schur, eps: float, chart: _Chart, value: float) -> list[float]:
    """The midpoint of each interval of the level inside the set."""
    cuts = np.sort(chart.level(value))
    if not len(cuts):
        return []
    if chart.cyclic:
        cuts = np.append(cuts, cuts[0] + 2 * math.pi)
    middle = (cuts[1:] + cuts[:-1]) / 2
    inside = sigma_min(form, chart.point(value, middle)) < eps if len(middle) else np.zeros(0, bool)
    return [(cuts[a] + cuts[b]) / 2 for a, b in _runs(inside)]


def _runs(flags: Array) -> list[tuple[int, int]]:
    """First and last cut of each run of adjacent intervals inside."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _half_planes(A: Array, eps: float) -> _Chart:
    n = len(A)
    eye, H = np.eye(n), A.conj().T

    def level(x: float) -> Array:
        """i y is an eigenvalue of the Hamiltonian matrix [[A - x, eps], [-eps, x - A*]]."""
        return np.unique(np.linalg.eigvals(np.block([[A - x * eye, eps * eye], [-eps * eye, x * eye - H]])).imag)

    def reach(y: float) -> Array:
        """x is a real eigenvalue of [[A - i y, eps], [eps, A* + i y]]."""
        return _near_real(np.linalg.eigvals(np.block([[A - 1j * y * eye, eps * eye], [eps * eye, H + 1j * y * eye]])))

    return _Chart(lambda x, y: x + 1j * y, level, reach, cyclic=False)


def _discs(A: Array, eps: float) -> _Chart:
    import scipy.linalg

    n = len(A)
    eye, zero, H = np.eye(n), np.zeros((n, n)), A.conj().T

    def level(r: float) -> Array:
        """exp(i t) is an eigenvalue of the pencil [[A, eps], [0, r]] - w [[r, 0], [eps, A*]]."""
        left, right = np.block([[A, eps * eye], [zero, r * eye]]), np.block([[r * eye, zero], [eps * eye, H]])
        w = scipy.linalg.eigvals(left, right)
        return np.unique(np.angle(w[np.isfinite(w) & (w != 0)]))

    def reach(t: float) -> Array:
        """r is a real eigenvalue of [[A e^-it, eps e^-it], [eps e^it, A* e^it]]."""
        w = np.exp(1j * t)
        return _near_real(np.linalg.eigvals(np.block([[A / w, eps / w * eye], [eps * w * eye, H * w]])))

    return _Chart(lambda r, t: r * np.exp(1j * t), level, reach, cyclic=True)


def _near_real(values: Array) -> Array:
    return values.real[np.abs(values.imag) <= 1e-6 * max(1e-300, float(np.abs(values).max()))]


def _check(where: str, A: Matrix, eps: float) -> Array:
    checks.check_real_number(where, "eps", eps)
    return checks.check_matrix(where, A).numpy()
