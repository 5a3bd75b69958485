"""The H-infinity norm by level sets: gamma is a singular value of G(i w) exactly where i w is an eigenvalue of

    H = [[F, B R^-1 B*], [-C* (I + D R^-1 D*) C, -F*]],    R = gamma^2 I - D* D,    F = A + B R^-1 D* C

(Boyd and Balakrishnan 1990; Bruinsma and Steinbuch 1990). A discrete system is first mapped to the axis by
z = z0 (1 + s)/(1 - s), which moves frequencies and preserves gains. For small systems: 2n eigenvalues per level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from resolvent.analysis.matrices.exact import Array, scale_of
from resolvent.analysis.systems.realisation import Realisation

LEVELS = 60
FAINT = 1e-15  # gains below this share of |B| |C| and |D| are rounding


@dataclass(frozen=True)
class _Axis:
    """A continuous system with the gains of the given one; `turn` is z0, None if that one was continuous."""

    A: Array
    B: Array
    C: Array
    D: Array
    turn: complex | None

    def gain(self, w: float) -> float:
        if math.isinf(w):
            return float(np.linalg.norm(self.D, 2))
        X = np.linalg.solve(1j * w * np.eye(len(self.A)) - self.A, self.B)
        return float(np.linalg.norm(self.C @ X + self.D, 2))

    def frequency(self, w: float) -> float:
        """The frequency w of the given system."""
        if self.turn is None:
            return w
        return float(np.angle(self.turn * np.exp(2j * math.atan(w))))


def level_set(one: Realisation, rtol: float) -> tuple[float, float, float, float, str]:
    """value, lower, upper, frequency and a reason if the levels did not converge."""
    inner, outer = scale_of(one.B), scale_of(one.C)  # gains of any size are found in units of their own
    direct = scale_of(one.D) if one.D.any() else 0.0
    unit = max(inner * outer, direct) or 1.0
    if math.isinf(unit):
        return math.inf, 0.0, math.inf, 0.0, "the gains of the matrices together are beyond the largest number"
    one = replace(one, B=one.B / inner, C=one.C * (inner / unit), D=one.D / unit)
    value, lower, upper, place, reason = _find_level(one, rtol)
    return unit * value, unit * lower, unit * upper, place, reason


def _find_level(one: Realisation, rtol: float) -> tuple[float, float, float, float, str]:
    axis = _from_circle(one) if one.discrete else _Axis(one.dense(), one.B, one.C, one.D, None)
    best, place = _best(axis, [0.0, math.inf, *np.linalg.eigvals(axis.A).imag])
    for _ in range(LEVELS):
        level = best * (1 + rtol) + FAINT
        value, w = _best(axis, _candidates(axis, level))
        if value <= level:
            best, place = (value, w) if value > best else (best, place)
            return best, best, level, axis.frequency(place), ""
        best, place = value, w
    return best, best, math.inf, axis.frequency(place), f"the level sets did not settle within {LEVELS} levels"


def _candidates(axis: _Axis, level: float) -> list[float]:
    """The imaginary parts of all eigenvalues of H and their midpoints, without a threshold for imaginary ones."""
    A, B, C, D = axis.A, axis.B, axis.C, axis.D
    R = level**2 * np.eye(D.shape[1]) - D.conj().T @ D
    F = A + B @ np.linalg.solve(R, D.conj().T @ C)
    lower = -C.conj().T @ (C + D @ np.linalg.solve(R, D.conj().T @ C))
    H = np.block([[F, B @ np.linalg.solve(R, B.conj().T)], [lower, -F.conj().T]])
    heights = np.unique(np.linalg.eigvals(H).imag)
    return [*heights, *((heights[1:] + heights[:-1]) / 2)]


def _best(axis: _Axis, places: list[float]) -> tuple[float, float]:
    return max((axis.gain(w), w) for w in places)


def _from_circle(one: Realisation) -> _Axis:
    """z0 is the one of eight points of the circle whose opposite is farthest from the poles: A + z0 is inverted."""
    A, C, D = one.dense(), one.C, one.D
    if not one.delay:
        C, D = one.C @ A, one.C @ one.B + one.D
    eye = np.eye(len(A))
    turns = [1.0, -1.0, 1j, -1j, *(np.exp(1j * math.pi * k / 4) for k in (1, 3, 5, 7))]
    turn = max(turns, key=lambda t: float(np.linalg.svd(A / t + eye, compute_uv=False)[-1]))
    inverse = np.linalg.inv(A / turn + eye)
    root = math.sqrt(2)
    B = root * inverse @ one.B / turn
    return _Axis((A / turn - eye) @ inverse, B, root * C @ inverse, D - C @ inverse @ one.B / turn, turn)
