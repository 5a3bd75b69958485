"""Pointwise functions on an interval: their range, and linear lower and upper bounds.

range   f(low), f(high) for the increasing ones; gelu and silu fall to one minimum and rise after it
lines   a z + b_low <= f(z) <= a' z + b_high on [low, high]. relu: the secant above, 0 or z below (CROWN). The smooth
        ones: the secant's slope on both sides, with f(z) - a z searched on a grid; between two grid points h apart
        it is within max|f''| h^2 / 8 of its secant, which is added, so the bounds are rigorous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.usage.numbers import check_choice

Function = Literal["none", "relu", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu"]

GRID = 48
ROUNDING = 1e-12


@dataclass(frozen=True)
class Curve:
    """f, a bound on |f''| (None: not smooth), and the minimiser of f if it is not increasing."""

    f: Callable[[Tensor], Tensor]
    bend: float | None
    lowest: float | None = None


CURVES: dict[str, Curve] = {
    "none": Curve(lambda z: z, 0.0),
    "relu": Curve(F.relu, None),
    "tanh": Curve(torch.tanh, 0.77),  # 4 / (3 sqrt 3) = 0.7698
    "sigmoid": Curve(torch.sigmoid, 0.0963),  # sqrt 3 / 18 = 0.09622
    "gelu": Curve(F.gelu, 0.798, -0.7517915246935645),  # 2 phi(0) = 0.79788
    "gelu_tanh": Curve(lambda z: F.gelu(z, approximate="tanh"), 0.798, -0.7524614220710162),
    "silu": Curve(F.silu, 0.5, -1.2784645427610738),
}


class Lines(NamedTuple):
    """slope_low z + low <= f(z) <= slope_high z + high."""

    slope_low: Tensor
    low: Tensor
    slope_high: Tensor
    high: Tensor


def curve(name: str) -> Curve:
    check_choice("Pointwise", "function", name, CURVES)
    return CURVES[name]


def value_range(name: str, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of f on [low, high]."""
    c = curve(name)
    at_low, at_high = c.f(low), c.f(high)
    if c.lowest is None:
        return at_low, at_high
    bottom = c.f(torch.full_like(low, c.lowest))
    least = torch.where((low < c.lowest) & (high > c.lowest), bottom, torch.minimum(at_low, at_high))
    return least, torch.maximum(at_low, at_high)


def lines(name: str, low: Tensor, high: Tensor) -> Lines:
    """Two lines around f on [low, high], entry by entry."""
    c = curve(name)
    if c.bend is None:
        return _relu_lines(low, high)
    width = high - low
    narrow = width < 1e-9
    rise = c.f(high) - c.f(low)
    slope = torch.where(narrow, torch.zeros_like(low), rise / width.clamp_min(1e-9))
    least = c.f(low) - slope * low
    most = least.clone()
    for k in range(1, GRID + 1):
        z = low + width * (k / GRID)
        gap = c.f(z) - slope * z
        least, most = torch.minimum(least, gap), torch.maximum(most, gap)
    room = c.bend * (width / GRID).square() / 8 + ROUNDING * (1 + low.abs() + high.abs()) + 2 * width * narrow
    return Lines(slope, least - room, slope, most + room)


def _relu_lines(low: Tensor, high: Tensor) -> Lines:
    dead, alive = high <= 0, low >= 0
    secant = high / (high - low).clamp_min(1e-300)
    slope_high = torch.where(dead, 0.0, torch.where(alive, 1.0, secant))
    offset = torch.where(dead | alive, torch.zeros_like(low), -secant * low * (1 + ROUNDING))
    slope_low = torch.where(alive | (~dead & (high > -low)), 1.0, 0.0).to(low.dtype)
    return Lines(slope_low, torch.zeros_like(low), slope_high, offset)
