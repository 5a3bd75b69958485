"""Transient growth: how large powers and exponentials of a stable matrix become before they decay.

Once ||A^m|| < 1 no later power exceeds the largest of the first m: the search ends there with the exact answer. For
exponentials the values between two times are bounded by ||exp((t + s) A)|| <= ||exp(t A)|| exp(s w), w the numerical
abscissa, and by ||exp(t A)|| + s ||A exp(t A)|| sup ||exp(s A)||.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.matrices.exact import Array
from resolvent.analysis.matrices.numerical_range import numerical_abscissa
from resolvent.analysis.valued import Valued

DOUBLINGS = 37  # up to t ||A|| ~ 1e10, where exp(t A) is still good to six digits
BUDGET = 4_000  # exponentials
EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class TransientGrowth(Valued):
    """value <= sup <= upper, `value` reached at `time` (a step, for powers).

    Examples:
        >>> rv.analysis.power_growth(torch.tensor([[0.5, 10.0], [0.0, 0.5]])).value > 1
        True
    """

    value: float
    upper: float
    time: float
    reason: str = ""


def power_growth(A: Matrix, max_steps: int = 5000) -> TransientGrowth:
    """sup_k ||A^k||_2 over k = 0, 1, ...: exact when some power among the first max_steps has a norm below 1.

    A slower matrix is also checked at later steps, which grow by a tenth; `upper` then relies on the condition
    of its eigenvectors, sup <= kappa(V). Infinite, with a reason, for an unstable matrix.

    Examples:
        >>> rv.analysis.power_growth(0.5 * torch.eye(2)).value
        1.0
    """
    matrix = checks.check_matrix("power_growth", A).numpy()
    checks.check_count("power_growth", "max_steps", max_steps)
    reason = instability(np.linalg.eigvals(matrix), discrete=True)[0]
    if "beyond" in reason:
        return TransientGrowth(math.inf, math.inf, math.inf, reason)
    best, step, power = 1.0, 0, np.eye(len(matrix))
    for k in range(1, max_steps + 1):
        power = power @ matrix
        frobenius = float(np.linalg.norm(power))
        norm = float(np.linalg.norm(power, 2)) if frobenius > min(best, 1.0) else frobenius
        if norm > best * (1 + 4 * EPS):
            best, step = norm, k
        if norm < 1 or (k == 1 and norm <= 1 + len(matrix) * EPS):
            return TransientGrowth(best, best, float(step))
    return _later(matrix, power, max_steps, best, float(step))


def _later(A: Array, power: Array, k: int, best: float, step: float) -> TransientGrowth:
    """Check steps that grow by a tenth, until the powers have decayed or the doublings end."""
    while k < 2**33:  # beyond, rounding reaches the sixth digit
        more = max(1, k // 10)
        power, k = power @ np.linalg.matrix_power(A, more), k + more
        norm = float(np.linalg.norm(power, 2))
        if norm > best:
            best, step = norm, float(k)
        if norm < 1:
            break
    reason = "slow decay: not every power was formed; upper is kappa of the eigenvectors"
    return TransientGrowth(best, max(best, _kappa(A)), step, reason)


def exponential_growth(A: Matrix, rtol: float = 1e-3) -> TransientGrowth:
    """sup_t ||exp(t A)||_2 over t >= 0, bracketed to the relative width rtol.

    Examples:
        >>> round(rv.analysis.exponential_growth(-torch.eye(2)).value, 3)
        1.0
    """
    matrix = checks.check_matrix("exponential_growth", A).numpy()
    checks.check_real_number("exponential_growth", "rtol", rtol, least=1e-6 * 0.999, most=1.0)
    reason = instability(np.linalg.eigvals(matrix), discrete=False)[0]
    if "beyond" in reason:
        return TransientGrowth(math.inf, math.inf, math.inf, reason)
    rate = numerical_abscissa(matrix)
    if rate <= len(matrix) * EPS * float(np.linalg.norm(matrix)):
        return TransientGrowth(1.0, 1.0, 0.0)
    times, decayed = _horizon(matrix)
    found = _Flow(matrix, rate).ascend(times, rtol)
    if decayed:
        return found
    slow = "no decay was seen: upper is kappa of the eigenvectors"
    return TransientGrowth(found.value, max(found.value, _kappa(matrix)), found.time, slow)


def _horizon(A: Array) -> tuple[list[float], bool]:
    """Times that double until the exponential has decayed below 1: later times cannot matter."""
    t = 0.1 / float(np.linalg.norm(A, 2))
    times, flow = [0.0, t], _exponentials(A, np.asarray([t]))[0]
    for _ in range(DOUBLINGS):
        if float(np.linalg.norm(flow, 2)) < 1:
            return times, True
        flow, t = flow @ flow, 2 * t
        times.append(t)
    return times, False


class _Flow:
    """||exp(t A)|| at some times, with bounds in between."""

    def __init__(self, A: Array, rate: float) -> None:
        self.A, self.rate, self.kappa = A, rate, _kappa(A)

    def ascend(self, times: list[float], rtol: float) -> TransientGrowth:
        t = np.asarray(times)
        size, slope = self._sizes(t)
        best = int(np.argmax(size))
        value, when, upper = float(size[best]), float(t[best]), 0.0
        a, b, size, slope = t[:-1], t[1:], size[:-1], slope[:-1]
        count, reason = len(t), ""
        while len(a):
            bound = self._bounds(b - a, size, slope)
            open_ = bound > value * (1 + rtol)
            if count + int(open_.sum()) > BUDGET:
                open_, reason = np.zeros_like(open_), "the search ended before the bracket was as narrow as asked for"
            upper = max(upper, float(bound[~open_].max(initial=0.0)))
            a, b, size, slope = a[open_], b[open_], size[open_], slope[open_]
            middle = (a + b) / 2
            new, steep = self._sizes(middle)
            count += len(middle)
            if len(new) and new.max() > value:
                value, when = float(new.max()), float(middle[np.argmax(new)])
            a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
            size, slope = np.concatenate([size, new]), np.concatenate([slope, steep])
        return TransientGrowth(value, max(upper, value), when, reason)

    def _bounds(self, width: Array, size: Array, slope: Array) -> Array:
        with np.errstate(over="ignore"):
            factor = np.exp(self.rate * width)
        return np.minimum(size * np.minimum(factor, self.kappa), size + width * slope * np.minimum(factor, self.kappa))

    def _sizes(self, t: Array) -> tuple[Array, Array]:
        """||exp(t A)|| and ||A exp(t A)|| for each time."""
        if not len(t):
            return np.zeros(0), np.zeros(0)
        flows = _exponentials(self.A, t)
        return np.linalg.norm(flows, 2, axis=(-2, -1)), np.linalg.norm(self.A @ flows, 2, axis=(-2, -1))


def _exponentials(A: Array, t: Array) -> Array:
    """exp(t A) for each time: (k, n, n)."""
    return torch.linalg.matrix_exp(torch.from_numpy(t[:, None, None] * A)).numpy()


def _kappa(A: Array) -> float:
    """The condition of the eigenvectors in float64; infinite if dominated by rounding."""
    V = np.linalg.eig(A)[1]
    sigma = np.linalg.svd(V, compute_uv=False)
    return float(sigma[0] / sigma[-1]) * (1 + 1e-6) if sigma[-1] > 1e-8 * sigma[0] else math.inf
