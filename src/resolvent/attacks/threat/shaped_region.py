"""Regions of perturbations with a shape over time: few time steps, or a band of frequencies.

A budget of steps is not a convex set. Its nearest point is exact for Linf, and for L2 and L1 without bounds; with
bounds the steps are chosen by their gain in the plain region, followed by the nearest point on those steps.

A band is a subspace: Dykstra's alternating projections approximate the nearest point of subspace and region, and the
last iterate is scaled towards x until it is in both. The result is always feasible; with tight bounds it may not be
the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.threat.channels import norm_of
from resolvent.attacks.threat.region import Region
from resolvent.attacks.threat.shape import Shape, align_time, find_heaviest, keep_band

_ROUNDS = 12  # of Dykstra's projections: steps of an attack need no more
_SLACK = 2.5e-7  # of max(1, |x|, eps): tolerated rounding past a bound before clipping


@dataclass(frozen=True, eq=False)
class ShapedRegion(Region):
    """`unshaped` is the region without the shape."""

    unshaped: Region
    shape: Shape

    @classmethod
    def around(cls, ball: Region, shape: Shape) -> ShapedRegion:
        return cls(ball.norm, ball.x, ball.eps, None, None, None, None, ball.free, ball, shape)

    def project(self, x_adv: Tensor) -> Tensor:
        if self.shape.band is not None:
            x_adv = self._in_band(x_adv)
        return x_adv if self.shape.steps is None else self._in_few_steps(x_adv)

    def select(self, index: Tensor) -> ShapedRegion:
        return self.around(self.unshaped.select(index), self.shape.select(index))

    def _in_few_steps(self, x_adv: Tensor) -> Tensor:
        x, steps = self.x, self.shape.steps
        assert steps is not None
        if steps >= x.shape[1]:
            return self.unshaped.project(x_adv)
        near = self.unshaped.project(x_adv)
        gain = (x_adv - x).square() - (x_adv - near).square()
        kept = align_time(find_heaviest(gain.flatten(2).sum(2) if x.dim() > 2 else gain, steps), x.dim())
        if self.norm != "linf":  # the dropped steps' norm is available to the remaining ones
            near = self.unshaped.project(torch.where(kept, x_adv, x))
        return torch.where(kept, near, x)

    def _in_band(self, x_adv: Tensor) -> Tensor:
        x, wrong = self.x, torch.zeros_like(x_adv)
        delta = self._filtered(x_adv - x)
        for _ in range(_ROUNDS if self.norm == "linf" or self.shape.low is not None else 0):
            near = self.unshaped.project(x + delta + wrong) - x
            wrong = delta + wrong - near
            delta = self._filtered(near)
        return self.unshaped.project(x + delta * self._fitting(delta))

    def _fitting(self, delta: Tensor) -> Tensor:
        """The largest factor up to 1 with which delta stays in the ball and, up to rounding, in the bounds."""
        x, radius = self.x, self.eps.flatten()
        over = norm_of(self.norm, delta, self.shape.scale) / radius.clamp_min(torch.finfo(delta.dtype).tiny)  # (b,)
        low, high = self.shape.low, self.shape.high
        if low is not None and high is not None:
            reach = torch.maximum(x.flatten(1).abs().amax(1), radius).clamp_min(1.0)
            slack = (_SLACK * reach).view(-1, *[1] * (x.dim() - 1))
            room = torch.where(delta > 0, high - x, x - low).clamp_min(0.0) + slack
            over = torch.maximum(over, (delta.abs() / room).flatten(1).amax(1))
        return (1 / over.clamp_min(1.0)).to(delta.dtype).view(-1, *[1] * (x.dim() - 1))

    def _filtered(self, delta: Tensor) -> Tensor:
        assert self.shape.band is not None
        delta = delta if self.free is None else delta * self.free
        found = keep_band(delta, self.shape.band, self.shape.spans)
        return found if self.free is None else found * self.free
