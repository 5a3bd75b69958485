"""Differences without cancellation error: 1 - a conj(b) near the unit circle to full precision.

Products and sums are split into a rounded value and its error (Dekker 1971, Knuth), both exact in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SPLIT = 134217729.0  # 2^27 + 1: cuts a float64 into two halves of 26 bits


def one_minus(a: Array, b: Array) -> Array:
    """1 - a conj(b), elementwise and complex, accurate also where a conj(b) is close to 1."""
    ar, ai, br, bi = np.real(a), np.imag(a), np.real(b), np.imag(b)
    p, e = _two_product(ar, br)
    q, f = _two_product(ai, bi)
    t, g = _two_sum(np.ones_like(p), -p)
    s, h = _two_sum(t, -q)
    real = s + ((g + h) - (e + f))
    p, e = _two_product(ar, bi)
    q, f = _two_product(ai, br)
    s, h = _two_sum(p, -q)
    return real + 1j * (s + (h + (e - f)))


def scale_of(A: Array) -> float:
    """The power of two next to the largest entry of A, 1 for zero: A divided by it is the same to the last digit."""
    return float(np.exp2(np.frexp(np.abs(A).max(initial=0.0))[1])) if A.any() else 1.0


def circle_gap(lam: Array) -> Array:
    """1 - |lam|, negative outside the circle."""
    return np.real(one_minus(lam, lam)) / (1 + np.abs(lam))


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    p = a * b
    ah, al = _halves(a)
    bh, bl = _halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _halves(a: Array) -> tuple[Array, Array]:
    c = SPLIT * a
    high = c - (c - a)
    return high, a - high


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
