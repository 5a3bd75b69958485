"""The shortest way from a point onto a hyperplane within a box (Croce & Hein 2020, FAB), in three norms.

Given w, c = <w, t> - b and the box low <= t + d <= high, each coordinate can only help in the direction that brings
<w, t + d> to b. With v_i >= 0 the distance moved that way and r_i the distance to the box, the problem is

    min ||v||  subject to  sum_i |w_i| v_i = |c|,  0 <= v_i <= r_i,

a continuous knapsack, filled in the order of the norm: Linf and L2 raise a common level, L1 takes the steepest
coordinates first. If the plane cannot be reached the solution is the corner of the box nearest to it: v = r wherever
w is not 0. Tensors are (b, n) and `gap` is c, (b,). Row by row in compiled code: fab_walk_numba.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.runtime.graph.watched import recording

_ROUNDS = 24  # Newton's method needs three to eight; other rows use the sorted solution
_FAR = 1e18  # practically infinite, but its square is finite


def plane_step(norm: str, w: Tensor, gap: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """d of least norm with <w, d> = -gap and -down <= d <= up, where down, up >= 0 may be infinite.

    Several gaps (..., b) with separate boxes (..., b, n) may share one w (b, n).
    """
    side = w.sign() * torch.where(gap < 0, 1.0, -1.0).to(w.dtype)[..., None]  # -1, 0 or 1: where the gap closes
    rising = side.clamp_min(0.0)
    room = torch.addcmul(up.clamp_max(_FAR) * rising, down.clamp_max(_FAR), rising - side)
    fill = {"linf": _fill_linf, "l2": _fill_l2, "l1": _fill_l1}[norm]
    return side * fill(w.abs(), gap.abs()[..., None], room)


def _fill_linf(slope: Tensor, gap: Tensor, room: Tensor) -> Tensor:
    """v_i = min(level, r_i)."""
    return torch.minimum(level(slope, room, slope * room, gap), room)


def _fill_l2(slope: Tensor, gap: Tensor, room: Tensor) -> Tensor:
    """v_i = min(level |w_i|, r_i): coordinate i is full at the level r_i / |w_i|."""
    peak = slope.amax(-1, keepdim=True)
    peak = torch.where(peak > 0, peak, 1.0)
    slope, gap = slope / peak, gap / peak  # squares of tiny slopes must not vanish
    full = (room / slope).nan_to_num_(0.0).clamp_max_(_FAR)  # 0 / 0: no slope, no room
    found = level(slope.square(), full, slope * room, gap)
    return torch.minimum(found.clamp_max(_FAR) * slope, room)


def _fill_l1(slope: Tensor, gap: Tensor, room: Tensor) -> Tensor:
    """The steepest coordinate first, each to its room, until the gap is closed."""
    steep, order = slope.expand(room.shape).sort(-1, descending=True)
    free = room.gather(-1, order)
    gain = steep * free
    before = torch.cat([torch.zeros_like(gap), gain[..., :-1].cumsum(-1)], -1)  # closed by the steeper ones
    take = torch.where(steep > 0, (gap - before) / steep, 0.0).clamp_min(0.0)
    return torch.zeros_like(room).scatter(-1, order, torch.minimum(take, free))


def level(weight: Tensor, full: Tensor, gain: Tensor, gap: Tensor) -> Tensor:
    """The lambda (..., 1) with sum_i weight_i min(lambda, full_i) = gap; infinite if full coordinates do not suffice.

    `gain` is weight_i full_i, free of overflow. The left side is concave and piecewise linear, so Newton's method from
    0 converges to the root from below in finitely many steps. Free coordinates are marked by numbers, 1 or 0: sums of
    products are several times faster on a CPU than selections.
    """
    pull = weight.sum(-1, keepdim=True)
    found = torch.where(pull > 0, gap / pull, torch.where(gap > 0, torch.inf, pull))
    for _ in range(_ROUNDS):
        free = (full - found).sign_().clamp_min_(0.0)
        pull = (weight * free).sum(-1, keepdim=True)
        rest = gap - (gain * free.neg_().add_(1.0)).sum(-1, keepdim=True)  # to be closed by the free coordinates
        raised = torch.where(pull > 0, rest.clamp_min(0.0) / pull, torch.where(rest > 0, torch.inf, found))
        rising = raised > found
        if not recording and not bool(rising.any()):
            return found
        found = torch.where(rising, raised, found)
    if recording:  # cannot synchronise: finished rows do not change
        weight, full, gain = (t.expand(full.shape).flatten(0, -2) for t in (weight, full, gain))
        return torch.where(rising, level_sorted(weight, full, gain, gap.flatten()[:, None]).view(found.shape), found)
    at = rising.squeeze(-1)
    found[at] = level_sorted(weight.expand(full.shape)[at], full[at], gain[at], gap[at])
    return found


def level_sorted(weight: Tensor, full: Tensor, gain: Tensor, gap: Tensor) -> Tensor:
    """The same by sorting the kinks: the reference, and the fallback if Newton takes too many steps."""
    kinks, order = full.sort(1)
    weight, gain = weight.gather(1, order), gain.gather(1, order)
    zero = torch.zeros_like(gap)
    closed = torch.cat([zero, gain.cumsum(1)], 1)  # (b, n + 1) by the first k coordinates, full
    pull = torch.cat([weight.flip(1).cumsum(1).flip(1), zero], 1)  # (b, n + 1) of all others
    at_kink = closed[:, :-1] + torch.where(pull[:, :-1] > 0, kinks * pull[:, :-1], 0.0)
    passed = (at_kink < gap).sum(1, keepdim=True)  # kinks below the root
    rest = (gap - closed.gather(1, passed)).clamp_min(0.0)
    pull = pull.gather(1, passed)
    return torch.where(pull > 0, rest / pull, torch.where(rest > 0, torch.inf, zero))
