"""Bounds on the floating-point error of a part of a model: an allowance in units of the machine's eps.

A sum of n terms is allowed `count(n)` eps of the terms' size. Rounding errors of single operations rarely align, so
errors of sums grow with sqrt(n) (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis").
Systematic errors of tables are counted in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

OPERATION = 8.0  # eps for a product, a quotient or a function of one number, and the conversions around it
POINTWISE = 16.0  # eps for an activation: vector maths libraries err by a few units
WIDEST = 65536  # most channels of a function that does not vanish at zero


@dataclass(frozen=True)
class Rounding:
    """For an input of norm |x| over s steps: error <= eps (slope |x| + floor sqrt(s)), and |f(0)| <= shift sqrt(s)."""

    slope: float
    shift: float = 0.0
    floor: float = 0.0


Allowance = Callable[[int], Rounding]  # from the maximum number of steps


def count(terms: int) -> float:
    """The eps allowed for a sum of this many products, in units of the sum of their sizes."""
    return OPERATION + 2 * math.sqrt(terms)


def size(matrix: Tensor) -> float:
    """The Frobenius norm in float64: at least the spectral norm of the matrix of moduli."""
    return float(matrix.detach().double().norm())


def of_linear(weight: Tensor) -> Allowance:
    """The rounding of W x, W (out, in)."""
    found = Rounding(count(weight.shape[-1]) * size(weight))
    return lambda steps: found


def of_bias(bias: Tensor, terms: Tensor | None = None) -> Allowance:
    """The rounding of x + b at every step; `terms` are the sizes from which b was computed, if it was."""
    held = size(bias) if terms is None else size(terms)
    found = Rounding(2.0, size(bias), OPERATION * held)
    return lambda steps: found


def of_function(slope: float, at_zero: float = 0.0) -> Allowance:
    """The rounding of an elementwise function."""
    wide = at_zero * math.sqrt(WIDEST)
    found = Rounding(POINTWISE * max(1.0, slope), wide, POINTWISE * wide)
    return lambda steps: found
