"""FAB's walk (Croce & Hein 2020, algorithm 1): along the decision boundary towards the nearest misclassified point.

A step projects the current point and x itself onto the linearised boundary, goes `eta` times as far, mixes the two and,
once across, draws back towards x by `beta`. `s` samples walk towards `k` classes each, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.attacks.fab_plane import plane_step
from resolvent.attacks.threat import Threat

_FLOOR = 1e-8  # of a step's norm, where two of them are compared


@dataclass(frozen=True)
class Pace:
    """alpha_max: most weight of x's own projection; eta: overshoot; beta: how far to draw back once across."""

    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9


@dataclass(eq=False)
class Walk:
    """Where the walkers stand, and the nearest misclassified point that they have come across."""

    x: Tensor  # (s, n)
    at: Tensor  # (s, k, n)
    threat: Threat
    free: Tensor | None  # (s, 1, n) bool: where the threat may act; None: everywhere
    low: Tensor | None  # (1 or s, 1, n)
    high: Tensor | None
    best: Tensor  # (s, n)
    distance: Tensor  # (s,) of best from x; infinite before one is found

    @classmethod
    def start(cls, x: Tensor, begin: Tensor, threat: Threat) -> Walk:
        """From `begin` (s, k, n) around x (s, ...), with the threat fitted to x."""
        flat, low, high = x.flatten(1), None, None
        if threat.bounds is not None:
            low, high = (_flat_bound(v, x) for v in threat.bounds)
        far = torch.full_like(flat[:, 0], torch.inf)
        free = None if threat.mask is None else threat.masked(torch.ones_like(x)).flatten(1)[:, None] > 0
        return cls(flat, begin, threat, free, low, high, flat.clone(), far)

    def step(self, gap: Tensor, slope: Tensor, pace: Pace) -> None:
        """Move all walkers, given z_t - z_y (s, k) and its gradient (s, k, n) where they stand."""
        slope = slope if self.free is None else slope * self.free
        home = self.x[:, None].expand(self.at.shape)
        gap_home = gap + (slope * (home - self.at)).sum(-1)
        here, there = self._onto(slope, torch.stack([gap, gap_home]), torch.stack([self.at, home]))
        a, b = self._norm(here).clamp_min(_FLOOR), self._norm(there).clamp_min(_FLOOR)
        alpha = (a / (a + b)).clamp_max(pace.alpha_max)[:, :, None]
        end, end_home = torch.add(self.at, here, alpha=pace.eta), torch.add(home, there, alpha=pace.eta)
        moved = self._inside(torch.lerp(end, end_home, alpha))
        self.at = moved if self.free is None else torch.where(self.free, moved, home)

    def across(self, wrong: Tensor, pace: Pace) -> Tensor:
        """Enter the misclassified walkers (s, k), draw them back; which (s,) improved on their best, and the walker."""
        home = self.x[:, None]
        delta = self.at - home
        distance = torch.where(wrong, self._norm(delta), torch.inf)  # (s, k)
        least, which = distance.min(1)
        nearer = least < self.distance
        if bool(nearer.any()):
            point = self.at[torch.arange(len(which), device=which.device), which]
            self.best = torch.where(nearer[:, None], point, self.best)
            self.distance = torch.where(nearer, least, self.distance)
        back = torch.where(wrong, pace.beta - 1, 0.0).to(delta.dtype)[:, :, None]
        self.at = torch.addcmul(self.at, delta, back)
        return torch.where(nearer, which, -1)

    def select(self, index: Tensor) -> Walk:
        low, high = (v if v is None or v.shape[0] == 1 else v[index] for v in (self.low, self.high))
        free = None if self.free is None else self.free[index]
        parts = {name: getattr(self, name)[index] for name in ("x", "at", "best", "distance")}
        return replace(self, threat=self.threat.select(index), free=free, low=low, high=high, **parts)

    def _onto(self, slope: Tensor, gap: Tensor, point: Tensor) -> Tensor:
        """Steps from points (2, s, k, n) onto the plane: both have its slope (s, k, n) and a gap (2, s, k) each."""
        infinite = torch.full((), torch.inf, dtype=point.dtype, device=point.device).expand(point.shape)
        down = infinite if self.low is None else (point - self.low).clamp_min_(0.0)
        up = infinite if self.high is None else (self.high - point).clamp_min_(0.0)
        return plane_step(self.threat.norm, slope, gap, down, up)

    def _norm(self, delta: Tensor) -> Tensor:
        return self.threat.norm_of(delta.reshape(-1, delta.shape[2])).view(delta.shape[:2])

    def _inside(self, point: Tensor) -> Tensor:
        return point if self.low is None or self.high is None else point.clamp(self.low, self.high)


def _flat_bound(value: object, x: Tensor) -> Tensor:
    bound = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    return bound.expand(bound.shape[0] if bound.dim() == x.dim() else 1, *x.shape[1:]).flatten(1)[:, None]
