"""Transient growth: how large powers and exponentials of a stable matrix become before they decay.

Once ||A^m|| < 1 no later power exceeds the largest of the first m: the search ends there with the exact answer.
Exponentials between two times a and a + h are within h^2/8 ||A^2 exp(a A)|| M(h) of a line between those at both ends,
and M(h), the largest ||exp(s A)|| for s <= h, is bounded before: by exp(h w), w the numerical abscissa, then by the
search itself at shorter times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.matrices.exact import Array, scale_of
from resolvent.analysis.matrices.numerical_range import numerical_abscissa
from resolvent.analysis.valued import Valued
from resolvent.usage import numbers

DOUBLINGS = 37  # up to t ||A|| ~ 1e10, where exp(t A) is still good to six digits
BUDGET = 4_000  # exponentials
LOOSE = 2.0  # a bound up to an early time may exceed the values there by this factor
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
    numbers.check_count("power_growth", 1, max_steps=max_steps)
    if float(np.linalg.norm(matrix, 2)) <= 1 + len(matrix) * EPS:  # a contraction, up to rounding
        return TransientGrowth(1.0, 1.0, 0.0)
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
        if norm < 1:
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
    unit = scale_of(matrix)  # of time: another one changes no norm
    matrix = matrix / unit
    rate = numerical_abscissa(matrix)
    if rate <= len(matrix) * EPS * float(np.linalg.norm(matrix)):
        return TransientGrowth(1.0, 1.0, 0.0)
    reason = instability(np.linalg.eigvals(matrix), discrete=False)[0]
    if "beyond" in reason:
        return TransientGrowth(math.inf, math.inf, math.inf, reason)
    flow = _Flow(matrix, rate)
    found = flow.ascend(rtol)
    if not flow.decayed:
        slow = "no decay was seen: upper is kappa of the eigenvectors"
        found = replace(found, upper=max(found.value, _kappa(matrix)), reason=slow)
    return replace(found, time=found.time / unit)


class _Flow:
    """||exp(t A)|| at times that double until it has decayed below 1, where later times cannot matter, and between."""

    def __init__(self, A: Array, rate: float) -> None:
        self.A, self.square, self.rate, self.kappa = A, A @ A, rate, _kappa(A)
        self.first = 0.1 / float(np.linalg.norm(A, 2))
        self.flows, self.sizes = [np.eye(len(A))], [1.0]
        self.steps: dict[int, Array] = {}  # exp(first 2^level A) for any level
        while len(self.flows) < DOUBLINGS + 2 and (len(self.flows) == 1 or self.sizes[-1] >= 1):
            self.flows.append(self._step(len(self.flows) - 1))
            self.sizes.append(float(np.linalg.norm(self.flows[-1], 2)))
        self.decayed = self.sizes[-1] < 1
        best = int(np.argmax(self.sizes))
        self.value, self.time = self.sizes[best], self._time(best)
        self.most = [math.exp(0.1), math.exp(0.1)]  # bounds of ||exp(s A)|| up to the time of the same index

    def ascend(self, rtol: float) -> TransientGrowth:
        """Interval by interval, each halved until its bound is close to the best value."""
        count, upper, reason, top = 0, 1.0, "", 1.0
        for i in range(len(self.flows) - 1):
            top, bound = max(top, self.sizes[i + 1]), 1.0
            parts = [(self.flows[i], self.sizes[i], self.sizes[i + 1], self._time(i), max(i - 1, 0))]
            while parts:
                flow, left, right, time, level = parts.pop()
                most = self._bound(flow, max(left, right), level)
                if most <= min(self.value * (1 + rtol), LOOSE * top) or count >= BUDGET:
                    if most > self.value * (1 + rtol):
                        reason = "the search ended before the bracket was as narrow as asked for"
                    bound = max(bound, most)
                    continue
                count, when = count + 1, time + self.first * 2.0 ** (level - 1)
                middle = self._step(level - 1) @ flow
                size = float(np.linalg.norm(middle, 2))
                top = max(top, size)
                if size > self.value:
                    self.value, self.time = size, when
                parts += [(middle, size, right, when, level - 1), (flow, left, size, time, level - 1)]
            upper = max(upper, bound)
            if i:
                self.most.append(max(self.most[-1], bound))
        return TransientGrowth(self.value, max(upper, self.value), self.time, reason)

    def _bound(self, flow: Array, ends: float, level: int) -> float:
        """Between two times first 2^level apart."""
        width = self.first * 2.0**level
        most = min(self.kappa, self.most[level + 1] if level >= 0 else math.exp(self.rate * width))
        return min(ends * most, ends + width**2 / 8 * float(np.linalg.norm(self.square @ flow)) * most)

    def _time(self, i: int) -> float:
        return self.first * 2.0 ** (i - 1) if i else 0.0

    def _step(self, level: int) -> Array:
        """exp(first 2^level A); level 0 from the series, those above by squaring."""
        if level not in self.steps:
            if level > 0:
                self.steps[level] = self._step(level - 1) @ self._step(level - 1)
            else:
                time = self.first * 2.0**level
                self.steps[level] = torch.linalg.matrix_exp(torch.from_numpy(time * self.A)).numpy()
        return self.steps[level]


def _kappa(A: Array) -> float:
    """The condition of the eigenvectors in float64; infinite if dominated by rounding."""
    V = np.linalg.eig(A)[1]
    sigma = np.linalg.svd(V, compute_uv=False)
    return float(sigma[0] / sigma[-1]) * (1 + 1e-6) if sigma[-1] > 1e-8 * sigma[0] else math.inf
