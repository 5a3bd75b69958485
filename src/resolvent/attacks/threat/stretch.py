"""Coordinates v = (point - x) / scale, in which a ball with an eps per channel is a plain one around 0.

Attacks that know a norm's geometry (FAB, Square, the nearest points of L2 and L1) work on v as on any other input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.threat.region import Region, inward, rows_of


@dataclass(frozen=True, eq=False)
class Stretch:
    """Each sample has its own: `low` and `high` bound the points themselves."""

    x: Tensor  # (b, ...)
    scale: Tensor  # (1 or b, ...)
    low: Tensor | None  # (1 or b, ...)
    high: Tensor | None

    def enter(self, points: Tensor) -> Tensor:
        return (points - self.x) / self.scale

    def leave(self, v: Tensor) -> Tensor:
        """x + scale v, rounded towards x: points of the ball stay inside, and v = 0 gives exactly x."""
        delta = v * self.scale
        point = self.x + delta
        point = inward(self.x, point, (v.double() * self.scale.double()).abs())
        return point if self.low is None or self.high is None else self._clamp(point)

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """The bounds on v: (b, ...) each, with 0 inside."""
        if self.low is None or self.high is None:
            return None
        low, high = ((v - self.x) / self.scale for v in (self.low, self.high))
        return low.clamp_max(0.0), high.clamp_min(0.0)

    def select(self, index: Tensor) -> Stretch:
        return Stretch(self.x[index], *(rows_of(v, index) for v in (self.scale, self.low, self.high)))

    def beside(self) -> Stretch:
        """Flat, for several points of each sample: (b, k, n)."""
        scale, low, high = (None if v is None else v.expand(v.shape[0], *self.x.shape[1:]).flatten(1)[:, None]
                            for v in (self.scale, self.low, self.high))  # fmt: skip
        assert scale is not None
        return Stretch(self.x.flatten(1)[:, None], scale, low, high)

    def _clamp(self, point: Tensor) -> Tensor:
        """Cut at the bounds, unless x itself is slightly outside: then the limit is x."""
        assert self.low is not None
        assert self.high is not None
        return point.clamp(torch.minimum(self.low, self.x), torch.maximum(self.high, self.x))


@dataclass(frozen=True, eq=False)
class StretchedRegion(Region):
    """A region of L2 or L1 with an eps for each channel: the nearest point is that of `ball`, measured in v."""

    stretch: Stretch
    ball: Region  # around 0

    @classmethod
    def around(cls, stretch: Stretch, ball: Region) -> StretchedRegion:
        return cls(ball.norm, stretch.x, ball.eps, None, None, None, None, ball.free, stretch, ball)

    def project(self, x_adv: Tensor) -> Tensor:
        return self._restore(self.stretch.leave(self.ball.project(self.stretch.enter(x_adv))))

    def select(self, index: Tensor) -> StretchedRegion:
        return self.around(self.stretch.select(index), self.ball.select(index))
