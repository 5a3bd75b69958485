"""How far a part of a model, run in floating point, may be from itself: an allowance in units of the machine's eps.

A sum of n terms is allowed `count(n)` eps of the terms' size. Errors of single operations hardly ever point one way, so
that sums grow with sqrt(n) (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis"). Tables that
are wrong in one direction are allowed in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

OPERATION = 8.0  # eps for a product, a quotient or a function of one number, and the conversions around it
POINTWISE = 16.0  # eps for an activation: vector libraries are a few units off
WIDEST = 65536  # channels that a function which does not vanish at zero is allowed


@dataclass(frozen=True)
class Rounding:
    """For an input of norm |x| over s steps: error <= eps (slope |x| + floor sqrt(s)), and |f(0)| <= shift sqrt(s)."""

    slope: float
    shift: float = 0.0
    floor: float = 0.0


Allowance = Callable[[int], Rounding]  # for sequences of at most so many steps


def count(terms: int) -> float:
    """eps that a sum of so many products is allowed, in units of the sum of their sizes."""
    return OPERATION + 2 * math.sqrt(terms)


def size(matrix: Tensor) -> float:
    """The Frobenius norm in float64: of a matrix, at least the spectral norm of the moduli of its entries."""
    return float(matrix.detach().double().norm())


def of_linear(weight: Tensor) -> Allowance:
    """W x, W (out, in)."""
    found = Rounding(count(weight.shape[-1]) * size(weight))
    return lambda steps: found


def of_bias(bias: Tensor, terms: Tensor | None = None) -> Allowance:
    """x + b at every step; `terms` are the sizes of what b was computed from, where it was."""
    held = size(bias) if terms is None else size(terms)
    found = Rounding(2.0, size(bias), OPERATION * held)
    return lambda steps: found


def of_function(slope: float, at_zero: float = 0.0) -> Allowance:
    """A function of each number alone."""
    wide = at_zero * math.sqrt(WIDEST)
    found = Rounding(POINTWISE * max(1.0, slope), wide, POINTWISE * wide)
    return lambda steps: found
