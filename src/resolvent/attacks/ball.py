"""Nearest points of a norm ball cut with a box, for delta (b, n), radius (b, 1) and low <= 0 <= high."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ROUNDS = 64  # each round of the L2 search fixes at least one coordinate at its bound; a handful is usual


def project_l2(delta: Tensor, radius: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """The nearest point is clip(s * delta) for the largest s in [0, 1] that stays in the ball (KKT conditions).

    s rises from the unclipped answer: what is cut off at the box is spent on the free coordinates, until nothing more
    is cut. Every s on the way is feasible, so stopping early is safe.
    """
    s = (radius / _length(delta).clamp_min(1e-30)).clamp_max(1.0)  # (b, 1)
    if low is None or high is None:
        return delta * s
    for _ in range(_ROUNDS):
        cut = (delta * s < low) | (delta * s > high)
        fixed = torch.where(cut, delta.clamp(low, high), 0.0).square().sum(1, keepdim=True)
        free = torch.where(cut, 0.0, delta).square().sum(1, keepdim=True)
        room = (radius.square() - fixed).clamp_min(0.0)
        raised = torch.where(free > 0, (room / free.clamp_min(1e-30)).sqrt(), 1.0).clamp_max(1.0)
        if not bool((raised > s * (1 + 1e-6)).any()):
            break
        s = torch.maximum(s, raised)
    return _shrink((delta * s).clamp(low, high), radius, _length)


def project_l1(delta: Tensor, radius: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """The nearest point is sign(delta) * clip(|delta| - mu, 0, cap) with the smallest mu >= 0 that stays in the ball.

    Its L1 norm falls piecewise linearly in mu, with kinks at |delta| - cap and |delta|: sort, walk down, interpolate.
    """
    size = delta.abs().double()
    cap = _cap(delta, low, high, size)
    start = (size - cap).clamp_min(0.0)  # below this mu the coordinate sits at its cap
    kinks, order = torch.cat([start, size], 1).sort(1)  # (b, 2n)
    turn = torch.ones_like(kinks)
    turn[order >= size.shape[1]] = -1.0  # a coordinate starts to fall at `start` and has vanished at `size`
    slope = turn.cumsum(1)
    fallen = (slope[:, :-1] * kinks.diff(dim=1)).cumsum(1)
    norm = torch.minimum(size, cap).sum(1, keepdim=True) - torch.cat([torch.zeros_like(kinks[:, :1]), fallen], 1)
    past = (norm > radius).sum(1, keepdim=True)  # kinks at which the norm is still too large
    at = (past - 1).clamp_min(0)
    excess = (norm.gather(1, at) - radius).clamp_min(0.0)
    mu = torch.where(past > 0, kinks.gather(1, at) + excess / slope.gather(1, at).clamp_min(1.0), 0.0)
    nearest = delta.sign() * torch.minimum((size - mu).clamp_min(0.0), cap).to(delta.dtype)
    return _shrink(nearest, radius, _taxi)


def _shrink(delta: Tensor, radius: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
    """Scale back what rounding pushed over the radius; towards 0 the box cannot be left."""
    length = norm(delta)  # (b, 1)
    return torch.where(length > radius, delta * (radius / length.clamp_min(1e-30)), delta)


def _cap(delta: Tensor, low: Tensor | None, high: Tensor | None, size: Tensor) -> Tensor:
    if low is None or high is None:
        return size
    return torch.where(delta > 0, high, -low).double()


def _length(delta: Tensor) -> Tensor:
    return torch.linalg.vector_norm(delta, dim=1, keepdim=True)


def _taxi(delta: Tensor) -> Tensor:
    return delta.abs().sum(1, keepdim=True)
