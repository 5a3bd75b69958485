"""FAB's step as one kernel, one program per walker: in torch operations it is over two hundred short ones, since
Newton's method for the level synchronises with the host after every round.

It follows `fab.walk.torch_stride` and `fab.plane.level` line by line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import attempt, on_device

if TYPE_CHECKING:
    from resolvent.attacks.fab.walk import Pace, Walk

MOST = 4096  # most values of a sample, all held by one program
_FAR = tl.constexpr(1e18)
_FLOOR = tl.constexpr(1e-8)


def stride(walk: Walk, gap: Tensor, slope: Tensor, pace: Pace) -> Tensor | None:
    """`torch_stride` for Linf and L2; None if it cannot run here."""
    if walk.at.shape[2] > MOST:
        return None
    return attempt("a step of FAB", lambda: _stride(walk, gap, slope, pace), lambda: None)


def _stride(walk: Walk, gap: Tensor, slope: Tensor, pace: Pace) -> Tensor:
    s, k, n = walk.at.shape
    slope, gap, at, x, low, high = (t.contiguous() for t in (slope, gap, walk.at, walk.x, walk.low, walk.high))
    out, sound = torch.empty_like(at), torch.empty(s * k, dtype=torch.uint8, device=at.device)
    block = max(triton.next_power_of_2(n), 16)
    with on_device(at):
        stride_kernel[(s * k,)](
            slope, gap, at, x, low, high, out, sound, k, n, len(low), len(high), pace.alpha_max, pace.eta,
            SQUARED=walk.threat.norm == "l2", BLOCK=block, num_warps=min(max(block // 256, 1), 8),
        )  # fmt: skip
    walk.odd = walk.odd | (sound.view(s, k) == 0).any(1)
    return out


@triton.jit
def stride_kernel(  # type: ignore[no-untyped-def]
    SLOPE, GAP, AT, X, LOW, HIGH, OUT, SOUND, k, n, lows, highs, most, eta, SQUARED: tl.constexpr, BLOCK: tl.constexpr
):
    walker = tl.program_id(0).to(tl.int64)
    sample, i = walker // k, tl.arange(0, BLOCK)
    inside = i < n
    w, gap = tl.load(SLOPE + walker * n + i, mask=inside, other=0.0), tl.load(GAP + walker)
    at = tl.load(AT + walker * n + i, mask=inside, other=0.0)
    home = tl.load(X + sample * n + i, mask=inside, other=0.0)
    low = tl.load(LOW + (sample % lows) * n + i, mask=inside, other=0.0)
    high = tl.load(HIGH + (sample % highs) * n + i, mask=inside, other=0.0)
    sound = tl.sum(w - w, 0) + (gap - gap) == 0  # NaN if anything is not finite
    tl.store(SOUND + walker, sound.to(tl.uint8))
    w, gap = tl.where(sound, w, 0.0), tl.where(sound, gap, 0.0)
    here, near = onto(w, gap, at, low, high, SQUARED)
    there, far = onto(w, gap + tl.sum(w * (home - at), 0), home, low, high, SQUARED)
    near, far = tl.maximum(near, _FLOOR), tl.maximum(far, _FLOOR)
    alpha = tl.minimum(near / (near + far), most)
    end, end_home = at + eta * here, home + eta * there
    apart = end_home - end
    mixed = tl.where(alpha < 0.5, end + alpha * apart, end_home - apart * (1 - alpha))
    tl.store(OUT + walker * n + i, tl.minimum(tl.maximum(mixed, low), high), mask=inside)


@triton.jit
def onto(w, gap, point, low, high, SQUARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """`plane_step` from one point in a box, and its norm."""
    towards = tl.where(gap < 0, 1.0, -1.0)
    side = tl.where(w > 0, towards, tl.where(w < 0, -towards, 0.0))
    up, down = tl.maximum(high - point, 0.0), tl.maximum(point - low, 0.0)
    room = tl.minimum(tl.where(side > 0, up, tl.where(side < 0, down, 0.0)), _FAR)
    slope, gap = tl.abs(w), tl.abs(gap)
    if SQUARED:
        peak = tl.max(slope, 0)
        peak = tl.where(peak > 0, peak, 1.0)
        slope, gap = slope / peak, gap / peak
        full = tl.minimum(room / tl.where(slope > 0, slope, 1.0), _FAR)
        gone = tl.minimum(tl.minimum(find_level(slope * slope, full, slope * room, gap), _FAR) * slope, room)
        size = tl.sqrt(tl.sum(gone * gone, 0))
    else:
        gone = tl.minimum(find_level(slope, room, slope * room, gap), room)
        size = tl.max(gone, 0)
    return side * gone, size


@triton.jit
def find_level(weight, full, gain, gap):  # type: ignore[no-untyped-def]
    """Newton's method, which increases in every round and reaches each kink at most once."""
    pull = tl.sum(weight, 0)
    found = tl.where(pull > 0, gap / tl.where(pull > 0, pull, 1.0), tl.where(gap > 0, float("inf"), 0.0))
    rises = found >= 0
    while rises:
        free = full > found
        pull = tl.sum(tl.where(free, weight, 0.0), 0)
        rest = gap - tl.sum(tl.where(free, 0.0, gain), 0)
        then = tl.maximum(rest, 0.0) / tl.where(pull > 0, pull, 1.0)
        then = tl.where(pull > 0, then, tl.where(rest > 0, float("inf"), found))
        rises = then > found
        found = tl.maximum(then, found)
    return found
