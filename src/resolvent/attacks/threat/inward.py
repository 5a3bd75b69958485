"""Rounding towards x: what lies in a ball stays in it when it is written down in few digits.

x + delta is rounded to the nearest number, which may lie further from x than delta: by half of its last digit, which is
more than eps where x is large. Differences are taken in float64 together with what float64 loses of them, so that
"further" is said of the numbers themselves.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def inward(x: Tensor, moved: Tensor, reach: Tensor) -> Tensor:
    """`moved`, or its neighbour towards x where it lies further than `reach` from x."""
    return torch.where(further(x, moved, reach), torch.nextafter(moved, x), moved)


def further(x: Tensor, moved: Tensor, reach: Tensor) -> Tensor:
    """Whether |moved - x| > reach, exactly: bool of x's shape."""
    a, b, most = moved.double(), x.double(), reach.double()
    gap = a - b
    kept = gap + b
    lost = (a - kept) + (kept - gap - b)  # a - b = gap + lost
    lost = torch.where(gap < 0, -lost, lost)
    return (gap.abs() > most) | ((gap.abs() == most) & (lost > 0))


def slack(dtype: torch.dtype, n: int) -> float:
    """The share of a radius that a sum over n entries, and products in this dtype, may lose to rounding."""
    return 4 * torch.finfo(dtype).eps + n * torch.finfo(torch.float64).eps


def below(values: Tensor, dtype: torch.dtype) -> Tensor:
    """In this dtype, and no larger."""
    if values.dtype == dtype:
        return values
    rounded = values.to(dtype)
    return torch.where(rounded.double() > values.double(), torch.nextafter(rounded, rounded.new_zeros(())), rounded)


@cache
def number_below(value: float, dtype: torch.dtype) -> float:
    """The same for one number that is not negative."""
    return float(below(torch.tensor(value, dtype=torch.float64), dtype))
