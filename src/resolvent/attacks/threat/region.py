"""The set of allowed points around given x: ball, bounds and mask together, with constants precomputed.

An attack projects thousands of times onto the same region: `region = threat.around(x)` once, `region.project(x_adv)` in
every step, `region.select(keep)` when samples are dropped. A sample's projection does not depend on the others in its
batch, and its distance from x is at most eps in exact arithmetic at any precision of x: x + delta is rounded to the
nearest number, which may be further from x than delta by half a unit in the last place, more than eps where x is large.
Differences are therefore computed in float64 together with their rounding errors, so that comparisons are exact for
the stored numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.threat.ball import project_l1, project_l2
from resolvent.runtime.graph.watched import recording

FAR = 1e18  # as good as infinitely far: its square is still a number


@dataclass(frozen=True, eq=False)
class Region:
    """`low` and `high` bound x_adv itself: the box of ball and bounds for Linf, the bounds otherwise."""

    norm: str
    x: Tensor  # (b, ...)
    eps: Tensor  # (b, 1)
    low: Tensor | None  # (1 or b, ...)
    high: Tensor | None
    down: Tensor | None  # (b, n) <= 0: how far x may move towards the bounds; None for Linf or without bounds
    up: Tensor | None  # (b, n) >= 0
    free: Tensor | None  # bool, of x's rank: where the threat may act; None: everywhere

    @classmethod
    def make(
        cls, norm: str, x: Tensor, eps: Tensor, bounds: tuple[Tensor, Tensor] | tuple[None, None], free: Tensor | None
    ) -> Region:
        """eps is (b, 1), the bounds broadcast to x."""
        low, high = bounds
        if norm == "linf":
            reach = eps.view(-1, *[1] * (x.dim() - 1))
            return cls.box(x, reach, (low, high), free, eps)
        if low is None or high is None:
            return cls(norm, x, eps, None, None, None, None, free)
        # Rounding may have put x slightly outside its bounds; the range is then empty.
        low, high = torch.minimum(_rows(low, x), x), torch.maximum(_rows(high, x), x)
        down, up = (low - x).flatten(1).clamp(-FAR, 0.0), (high - x).flatten(1).clamp(0.0, FAR)
        return cls(norm, x, eps, low, high, down, up, free)

    @classmethod
    def box(
        cls, x: Tensor, reach: Tensor, bounds: tuple[Tensor | None, Tensor | None], free: Tensor | None, eps: Tensor
    ) -> Region:
        """Linf: entries of x may move by `reach`, which broadcasts to x."""
        step = reach.to(x.dtype)
        least, most = inward(x, x - step, reach), inward(x, x + step, reach)
        low, high = bounds
        low = least if low is None else torch.minimum(torch.maximum(least, low), most)
        high = most if high is None else torch.maximum(torch.minimum(most, high), least)
        return cls("linf", x, eps, low, high, None, None, free)

    def project(self, x_adv: Tensor) -> Tensor:
        """The nearest point; masked entries keep x's values."""
        if self.norm == "linf":
            return self._restore(x_adv.clamp(self.low, self.high))
        delta = x_adv - self.x
        delta = (delta if self.free is None else delta * self.free).flatten(1)  # (b, n)
        nearest = project_l2 if self.norm == "l2" else project_l1
        moved = self._add_delta(nearest(delta, self.eps, self.down, self.up))
        return self._restore(moved if self.low is None else moved.clamp(self.low, self.high))

    def flat(self) -> Region:
        """The same for points (b, n)."""
        low, high, free = (None if v is None else v.expand(v.shape[0], *self.x.shape[1:]).flatten(1)
                           for v in (self.low, self.high, self.free))  # fmt: skip
        return replace(self, x=self.x.flatten(1), low=low, high=high, free=free)

    def select(self, index: Tensor) -> Region:
        low, high, free = (rows_of(v, index) for v in (self.low, self.high, self.free))
        down, up = (None if v is None else v[index] for v in (self.down, self.up))
        return Region(self.norm, self.x[index], self.eps[index], low, high, down, up, free)

    def _restore(self, x_adv: Tensor) -> Tensor:
        return x_adv if self.free is None else torch.where(self.free, x_adv, self.x)

    def _add_delta(self, delta: Tensor) -> Tensor:
        """x + delta for delta (b, n); where accumulated rounding exceeds the radius, each entry is shortened."""
        x = self.x.flatten(1)
        moved = x + delta
        radius, less = self.eps.double(), slack(x.dtype, x.shape[1])
        over = self._length(moved.double() - x.double()) > radius * (1 - less / 2)  # (b, 1)
        if not recording and not bool(over.any()):
            return moved.view(self.x.shape)
        shy = radius * (1 - less)  # so that rounding the product cannot exceed the radius
        delta = (delta * (shy / self._length(delta).clamp_min(1e-300)).clamp_max(1.0)).to(delta.dtype)
        closer = inward(x, x + delta, delta.abs())
        return torch.where(over, closer, moved).view(self.x.shape)

    def _length(self, delta: Tensor) -> Tensor:
        order = 2 if self.norm == "l2" else 1
        return torch.linalg.vector_norm(delta, order, dim=1, keepdim=True, dtype=torch.float64)


def rows_of(value: Any, index: Tensor) -> Any:
    """These rows of a tensor (b, ...); one of a single row, which all samples share, and None stay."""
    return value if value is None or value.shape[0] == 1 else value[index]


def _rows(bound: Tensor, x: Tensor) -> Tensor:
    """A bound (1 or b, ...) with an entry for each of x's: clamping is several times faster without broadcasting."""
    samples = bound.shape[0] if bound.dim() == x.dim() else 1
    return bound.expand(samples, *x.shape[1:]).contiguous()


# -- rounding towards x ------------------------------------------------------------------------------------------------


def inward(x: Tensor, moved: Tensor, reach: Tensor) -> Tensor:
    """`moved`, or its neighbour towards x where it is further than `reach` from x."""
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
    """Converted to this dtype, rounding down."""
    if values.dtype == dtype:
        return values
    rounded = values.to(dtype)
    return torch.where(rounded.double() > values.double(), torch.nextafter(rounded, rounded.new_zeros(())), rounded)


@cache
def number_below(value: float, dtype: torch.dtype) -> float:
    """The same for one number that is not negative."""
    return float(below(torch.tensor(value, dtype=torch.float64), dtype))
