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
    free: Tensor  # (s, n) bool: where the threat may act
    low: Tensor | None  # (1 or s, n)
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
        free = threat.masked(torch.ones_like(x)).flatten(1) > 0
        return cls(flat, begin, threat, free, low, high, flat.clone(), far)

    def step(self, gap: Tensor, slope: Tensor, pace: Pace) -> None:
        """Move all walkers, given z_t - z_y (s, k) and its gradient (s, k, n) where they stand."""
        s, k, n = self.at.shape
        slope = slope * self.free[:, None]
        home = self.x[:, None].expand(s, k, n)
        gap_home = gap + torch.einsum("skn,skn->sk", slope, home - self.at)
        here, there = self._onto(slope, gap, self.at), self._onto(slope, gap_home, home)
        a, b = self._norm(here).clamp_min(_FLOOR), self._norm(there).clamp_min(_FLOOR)
        alpha = (a / (a + b)).clamp_max(pace.alpha_max)[:, :, None]
        moved = (self.at + pace.eta * here) * (1 - alpha) + (home + pace.eta * there) * alpha
        self.at = torch.where(self.free[:, None], self._inside(moved), home)

    def across(self, wrong: Tensor, pace: Pace) -> Tensor:
        """Enter the misclassified walkers (s, k), draw them back; which (s,) improved on their best, and the walker."""
        distance = torch.where(wrong, self._norm(self.at - self.x[:, None]), torch.inf)  # (s, k)
        least, which = distance.min(1)
        point = self.at[torch.arange(len(which), device=which.device), which]
        nearer = least < self.distance
        self.best = torch.where(nearer[:, None], point, self.best)
        self.distance = torch.where(nearer, least, self.distance)
        drawn = self.x[:, None] + pace.beta * (self.at - self.x[:, None])
        self.at = torch.where(wrong[:, :, None], drawn, self.at)
        return torch.where(nearer, which, -1)

    def select(self, index: Tensor) -> Walk:
        low, high = (v if v is None or v.shape[0] == 1 else v[index] for v in (self.low, self.high))
        parts = {name: getattr(self, name)[index] for name in ("x", "at", "free", "best", "distance")}
        return replace(self, threat=self.threat.select(index), low=low, high=high, **parts)

    def _onto(self, slope: Tensor, gap: Tensor, point: Tensor) -> Tensor:
        infinite = torch.full((), torch.inf, dtype=point.dtype, device=point.device).expand(point.shape)
        down = infinite if self.low is None else (point - self.low[:, None]).clamp_min(0.0)
        up = infinite if self.high is None else (self.high[:, None] - point).clamp_min(0.0)
        flat = (t.reshape(-1, point.shape[2]) for t in (down, up))
        return plane_step(self.threat.norm, slope.flatten(0, 1), gap.flatten(), *flat).view(point.shape)

    def _norm(self, delta: Tensor) -> Tensor:
        return self.threat.norm_of(delta.reshape(-1, delta.shape[2])).view(delta.shape[:2])

    def _inside(self, point: Tensor) -> Tensor:
        return point if self.low is None or self.high is None else point.clamp(self.low[:, None], self.high[:, None])


def _flat_bound(value: object, x: Tensor) -> Tensor:
    bound = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    return bound.expand(bound.shape[0] if bound.dim() == x.dim() else 1, *x.shape[1:]).flatten(1)
