"""The largest value of a function along a curve, with rigorous bounds instead of a grid maximum.

For f >= 0 that obeys f(w) >= M cos(phase(w) - phase(w0)) around the place w0 of its maximum M, two neighbours a < b
with the values f_a, f_b and phases that differ by W < pi/2 leave, if w0 lies between them,

    M^2 <= (f_a^2 + f_b^2 - 2 f_a f_b cos W) / sin^2 W.

Intervals whose bound does not exceed the best value found are dropped, the others are halved. The work is bounded
by the total phase over the square root of the tolerance, for any f. A second bound, for f = 1 / s with s changing by at
most `steep` times the distance (sigma_min of z - A by 1), s >= (s_a + s_b - steep (b - a)) / 2, needs few nodes far
from the peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from resolvent.analysis.matrices.exact import Array

SLACK = 1e-11  # allowance for rounding in differences of phases


@dataclass(frozen=True)
class Samples:
    """f at some nodes: low <= f <= high, the rounding part of that, and the phase. All (k,)."""

    low: Array
    high: Array
    noise: Array
    phase: Array


@dataclass(frozen=True)
class Peak:
    """lower <= max f <= upper, attained near `node`; `complete` is False if the budget ended the search."""

    lower: float
    upper: float
    node: float
    evaluations: int
    complete: bool


Sampler = Callable[[Array, float], Samples]  # nodes and the best value so far -> samples


def search(
    sample: Sampler, middle: Callable[[Array, Array], Array], nodes: Array, rtol: float, budget: int,
    floor: float = 0.0, steep: float = math.inf,
) -> Peak:  # fmt: skip
    """The peak of f over [nodes[0], nodes[-1]], to the relative width rtol if rounding and budget allow.

    A peak below `floor` does not matter: the upper bound is then only reduced below that. `steep` bounds the slope of
    1 / f, if it is known.
    """
    seen = sample(nodes, 0.0)
    best = _better((0.0, float(nodes[0])), seen, nodes)
    a, b = nodes[:-1], nodes[1:]
    left, right = _take(seen, slice(None, -1)), _take(seen, slice(1, None))
    upper, count, complete = 0.0, len(nodes), True
    while len(a):
        bound = bounds(left.high, right.high, np.abs(right.phase - left.phase) + SLACK)
        bound = np.minimum(bound, _steep_bounds(left.high, right.high, steep * (b - a)))
        mid = middle(a, b)
        open_ = bound > max(best[0] * (1 + rtol), floor) + 2 * np.maximum(left.noise, right.noise)
        open_ &= (a < mid) & (mid < b)
        if count + int(open_.sum()) > budget:
            open_, complete = np.zeros_like(open_), False
        upper = max(upper, float(bound[~open_].max(initial=0.0)))
        a, b, mid = a[open_], b[open_], mid[open_]
        if not len(a):
            break
        new = sample(mid, best[0])
        count += len(mid)
        best = _better(best, new, mid)
        left, right = _join(_take(left, open_), new), _join(new, _take(right, open_))
        a, b = np.concatenate([a, mid]), np.concatenate([mid, b])
    return Peak(best[0], max(upper, best[0]), best[1], count, complete)


def bounds(fa: Array, fb: Array, W: Array) -> Array:
    """The largest M possible between two neighbours; infinite where their phases differ by pi/2 or more."""
    cos, sin = np.cos(np.minimum(W, math.pi)), np.sin(W)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inner = np.hypot(fa - fb, 2 * np.sqrt(fa * fb) * np.sin(W / 2)) / sin
        inner = np.where(fb < fa * cos, fb / cos, np.where(fa < fb * cos, fa / cos, inner))
    inner = np.maximum(inner, np.maximum(fa, fb))
    return np.where(cos > 0, inner, math.inf)


def _steep_bounds(fa: Array, fb: Array, change: Array) -> Array:
    """The same if 1 / f changes by at most `change` between the two."""
    with np.errstate(divide="ignore", invalid="ignore"):
        least = (1 / fa + 1 / fb - change) / 2
        return np.where(least > 0, 1 / least, math.inf)


def _better(best: tuple[float, float], seen: Samples, nodes: Array) -> tuple[float, float]:
    """The best guaranteed value so far and its location."""
    i = int(np.argmax(seen.low))
    return (float(seen.low[i]), float(nodes[i])) if seen.low[i] > best[0] else best


def _take(s: Samples, index: slice | Array) -> Samples:
    return Samples(s.low[index], s.high[index], s.noise[index], s.phase[index])


def _join(s: Samples, t: Samples) -> Samples:
    return Samples(*(np.concatenate([getattr(s, f.name), getattr(t, f.name)]) for f in fields(Samples)))
