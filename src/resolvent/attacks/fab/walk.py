"""FAB's walk (Croce & Hein 2020, algorithm 1): along the decision boundary towards the nearest misclassified point.

A step projects the current point and x itself onto the linearised boundary, goes `eta` times as far, mixes the two and,
once across, moves back towards x by `beta`. `s` samples walk towards `k` classes each, in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.fab.plane import plane_step
from resolvent.attacks.threat.threat import Threat
from resolvent.runtime.dispatch import choose, numba_or, triton_or
from resolvent.runtime.graph.watched import recording

_FLOOR = 1e-8  # floor of step norms in comparisons


@dataclass(frozen=True)
class Pace:
    """alpha_max: most weight of x's own projection; eta: overshoot; beta: how far to move back once across."""

    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9


@dataclass(eq=False)
class Walk:
    """The walkers' positions, and the nearest misclassified point found so far."""

    x: Tensor  # (s, n)
    eps: Tensor  # (s,)
    at: Tensor  # (s, k, n)
    threat: Threat
    free: Tensor | None  # (s, 1, n) bool: where the threat may act; None: everywhere
    low: Tensor  # (1 or s, 1, n), infinite without bounds
    high: Tensor
    best: Tensor  # (s, n)
    distance: Tensor  # (s,) of best from x; infinite before one is found
    odd: Tensor  # (s,) bool: outputs or gradients were not finite

    @classmethod
    def start(cls, x: Tensor, begin: Tensor, threat: Threat, best: Tensor, distance: Tensor) -> Walk:
        """From `begin` (s, k, n) around x (s, ...), with the threat fitted to x and the best points (s, ...) so far."""
        flat, bounds = x.flatten(1), (-torch.inf, torch.inf) if threat.bounds is None else threat.bounds
        low, high = (_flat_bound(v, x) for v in bounds)
        eps, odd = threat.radius(flat)[:, 0], torch.zeros_like(distance, dtype=torch.bool)
        free = None if threat.mask is None else threat.masked(torch.ones_like(x)).flatten(1)[:, None] > 0
        return cls(flat, eps, begin, threat, free, low, high, best.flatten(1).contiguous(), distance, odd)

    def step(self, gap: Tensor, slope: Tensor, pace: Pace) -> None:
        """Move all walkers, given z_t - z_y (s, k) and its gradient (s, k, n) at their positions.

        Where these are not finite the walker ignores them.
        """
        slope = slope if self.free is None else slope * self.free
        moved = self._code("stride", torch_stride)(self, gap, slope, pace)
        self.at = moved if self.free is None else torch.where(self.free, moved, self.x[:, None])

    def across(self, logits: Tensor, y: Tensor, pace: Pace) -> Tensor:
        """Move back the walkers that logits (s, k, classes) misclassify against y (s, k), and record the nearest.

        Returns which walker (s,) came within eps, nearer than any before, or -1. Non-finite logits never count.
        """
        self.at, walker = self._code("back", torch_back)(self, logits, y, pace)
        return walker

    def is_flat(self, slope: Tensor) -> Tensor:
        """Whether slopes (s, k, n) are 0 wherever the threat may act: (s,)."""
        acts = slope if self.free is None else slope * self.free
        return (acts == 0).all(2).all(1)

    def select(self, index: Tensor) -> Walk:
        low, high = (v if v.shape[0] == 1 else v[index] for v in (self.low, self.high))
        free = None if self.free is None else self.free[index]
        parts = {name: getattr(self, name)[index] for name in ("x", "eps", "at", "best", "distance", "odd")}
        return replace(self, threat=self.threat.select(index), free=free, low=low, high=high, **parts)

    def norm(self, delta: Tensor) -> Tensor:
        """The norm of delta (s, k, n): (s, k)."""
        return self.threat.norm_of(delta.reshape(-1, delta.shape[2])).view(delta.shape[:2])

    def _code(self, name: str, truth: Any) -> Any:
        if self.threat.norm == "l1" or not self.at.numel():
            return truth
        return choose(f"fab {name}", _CANDIDATES[name], self.at.device, self.at.dtype)


def torch_stride(walk: Walk, gap: Tensor, slope: Tensor, pace: Pace) -> Tensor:
    """The walkers' positions after one step (s, k, n)."""
    sound = torch.isfinite(slope.abs().amax(2)) & torch.isfinite(gap) if slope.numel() else torch.isfinite(gap)
    walk.odd = walk.odd | ~sound.all(1)
    gap, slope = torch.where(sound, gap, 0.0), torch.where(sound[:, :, None], slope, 0.0)
    home = walk.x[:, None].expand(walk.at.shape)
    gap_home = gap + (slope * (home - walk.at)).sum(-1)
    point = torch.stack([walk.at, home])
    down, up = (point - walk.low).clamp_min_(0.0), (walk.high - point).clamp_min_(0.0)
    here, there = plane_step(walk.threat.norm, slope, torch.stack([gap, gap_home]), down, up)
    a, b = walk.norm(here).clamp_min(_FLOOR), walk.norm(there).clamp_min(_FLOOR)
    alpha = (a / (a + b)).clamp_max(pace.alpha_max)[:, :, None]
    end, end_home = torch.add(walk.at, here, alpha=pace.eta), torch.add(home, there, alpha=pace.eta)
    return torch.lerp(end, end_home, alpha).clamp(walk.low, walk.high)


def torch_back(walk: Walk, logits: Tensor, y: Tensor, pace: Pace) -> tuple[Tensor, Tensor]:
    """The positions after moving back those across, and which walker (s,) became the best within eps."""
    sound = torch.isfinite(logits).all(2)
    walk.odd = walk.odd | ~sound.all(1)
    wrong = sound & (logits.argmax(2) != y)
    delta = walk.at - walk.x[:, None]
    distance = torch.where(wrong, walk.norm(delta), torch.inf)  # (s, k)
    least, which = distance.min(1)
    nearer = least < walk.distance
    if recording or bool(nearer.any()):
        point = walk.at[torch.arange(len(which), device=which.device), which]
        walk.best = torch.where(nearer[:, None], point, walk.best)
        walk.distance = torch.where(nearer, least, walk.distance)
    back = wrong.to(delta.dtype)[:, :, None] * (pace.beta - 1)
    return torch.addcmul(walk.at, delta, back), torch.where(nearer & (least <= walk.eps), which, -1)


def _flat_bound(value: object, x: Tensor) -> Tensor:
    bound = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    return bound.expand(bound.shape[0] if bound.dim() == x.dim() else 1, *x.shape[1:]).flatten(1)[:, None].contiguous()


# -- choice of the kernel ---------------------------------------------------------------------------------------------


def _load(name: str) -> Any:
    from resolvent.ops.ascent import fab_numba

    return getattr(fab_numba, name)


def _example(norm: Any, device: torch.device, dtype: torch.dtype) -> tuple[Walk, Tensor]:
    """Two samples with two walkers each, and slopes for them."""
    slope = torch.sin(1.7 * torch.arange(36)).to(device, dtype).view(2, 2, 9)
    x, far = slope[:, 0].abs(), torch.full((2,), torch.inf, dtype=dtype, device=device)
    return Walk.start(x, x[:, None] * slope.abs(), Threat(norm, 0.5, (0.0, 1.0)).check(x), x.clone(), far), slope


def _agree(call: Any, kernels: tuple[Any, Any], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether both give the same walk: its final position and state."""
    same = True
    for norm in ("linf", "l2"):
        lines = []
        for run in kernels:
            walk, slope = _example(norm, device, dtype)
            lines.append((*call(run, walk, slope), walk.best, walk.distance))
        same &= all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*lines, strict=True))
    return same


def _probe_stride(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    return _agree(lambda run, walk, v: [run(walk, v[:, :, 0], v, Pace())], (kernel, torch_stride), device, dtype)


def _probe_back(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    y = torch.tensor([[0, 1], [1, 0]], device=device)
    return _agree(lambda run, walk, v: run(walk, v[:, :, :2], y, Pace()), (kernel, torch_back), device, dtype)


def _load_triton() -> Any:
    from resolvent.ops.ascent.fab_triton import stride

    def run(walk: Walk, gap: Tensor, slope: Tensor, pace: Pace) -> Tensor:
        moved = stride(walk, gap, slope, pace)
        return torch_stride(walk, gap, slope, pace) if moved is None else moved

    return run


_CANDIDATES = {
    "stride": (
        *numba_or(torch_stride, lambda: _load("stride"), _probe_stride)[:1],
        *triton_or(torch_stride, _load_triton, _probe_stride),
    ),
    "back": numba_or(torch_back, lambda: _load("back"), _probe_back),
}
