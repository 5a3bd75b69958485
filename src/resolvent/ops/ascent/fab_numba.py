"""FAB's step and its move back on a CPU, compiled by numba: one pass per walker, one call for all.

Each follows its counterpart in torch's operations (`fab_walk.torch_stride` and `torch_back`) line by line. Newton's
method for the level is that of `fab_plane.level`, without a limit on rounds: it increases each time and reaches a kink
at most once. All of it is in one file, because numba's disk cache checks only the kernel's own file. Imported
by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import carray, njit, types
from torch import Tensor

from resolvent.ops.ascent.apgd_numba import clamp
from resolvent.runtime.memory import fresh_like, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for

if TYPE_CHECKING:
    from resolvent.attacks.fab.walk import Pace, Walk

FAR = 1e18  # practically infinite, but its square is finite
FLOOR = 1e-8  # floor of step norms in comparisons
PASSES = 16  # approximate passes over a walker's row
# Sums and maxima are vectorised in another, fixed order; inputs here are never NaN.
_inner: Any = njit(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
_wary: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # handles NaN


def stride(walk: Walk, gap: Tensor, slope: Tensor, pace: Pace) -> Tensor:
    """`fab_walk.torch_stride` for Linf and L2."""
    s, k, n = walk.at.shape
    slope, gap, at, x = plain(slope), plain(gap), plain(walk.at), plain(walk.x)
    low, high, rates, out = plain(walk.low), plain(walk.high), _rates(pace, at.dtype), fresh_like(at)
    places = (v.data_ptr() for v in (rates, slope, gap, at, x, low, high, out, walk.odd))
    shape = walk.threat.norm == "l2", s, k, n, len(low), len(high)
    run(compile_for(_stride, at.dtype), (*shape, *places), s, threads_for(s * k * n * PASSES))
    return out


def back(walk: Walk, logits: Tensor, y: Tensor, pace: Pace) -> tuple[Tensor, Tensor]:
    """`fab_walk.torch_back` for Linf and L2."""
    s, k, n = walk.at.shape
    logits, y, at, x, eps = plain(logits), plain(y), plain(walk.at), plain(walk.x), plain(walk.eps)
    out, walker, rates = fresh_like(at), torch.empty(s, dtype=torch.int64), _rates(pace, at.dtype)
    held = walk.best, walk.distance, walk.odd
    places = (v.data_ptr() for v in (rates, logits, y, at, x, eps, *held, out, walker))
    settings = walk.threat.norm == "l2", s, k, n, logits.shape[2], *places
    run(compile_for(_back, at.dtype, logits.dtype), settings, s, threads_for(2 * s * k * n))
    return out, walker


@cache
def _rates(pace: Pace, dtype: torch.dtype) -> Tensor:
    return torch.tensor([pace.alpha_max, pace.eta, pace.beta - 1], dtype=dtype)


def _stride(dtype: Any) -> Any:
    """One task per sample; walker r belongs to sample r // k."""
    as_numpy = getattr(np, str(dtype))

    def body(p: Any) -> None:
        table = carray(p, HEAD + 15)
        first, end = share(table)
        squared, s, k, n, lows, highs = table[HEAD : HEAD + 6]
        at_rates, at_slope, at_gap, at_at, at_x, at_low, at_high, at_out, at_odd = table[HEAD + 6 :]
        rates, gap = carray(pointer(at_rates, dtype), 3), carray(pointer(at_gap, dtype), s * k)
        slope, at = carray(pointer(at_slope, dtype), (s * k, n)), carray(pointer(at_at, dtype), (s * k, n))
        x, out = carray(pointer(at_x, dtype), (s, n)), carray(pointer(at_out, dtype), (s * k, n))
        low, high = carray(pointer(at_low, dtype), (lows, n)), carray(pointer(at_high, dtype), (highs, n))
        odd, work = carray(pointer(at_odd, types.uint8), s), np.empty((9, n), as_numpy)
        w, near, far, lengths = work[8], work[:4], work[4:8], np.empty(2, as_numpy)
        for r in range(first * k, end * k):
            i = r // k
            home, bottom, top = x[i], low[i % lows], high[i % highs]
            miss, sound = _clean(slope[r], gap[r], w)
            odd[i] |= not sound
            for side in range(2):  # a single call site halves the compile time
                point, held = (at[r], near) if side == 0 else (home, far)
                lengths[side] = _onto(squared, w, miss + _between(w, at[r], point), point, bottom, top, held)
            _mix(at[r], near[0], home, far[0], _weight(lengths[0], lengths[1], rates), rates[1], out[r])
            clamp(out[r], bottom, top)

    return kernel(body)


def _back(dtype: Any, logit: Any) -> Any:
    """One task per sample."""
    as_numpy = getattr(np, str(dtype))

    def body(p: Any) -> None:
        table = carray(p, HEAD + 16)
        first, end = share(table)
        squared, s, k, n, classes, at_rates, at_logits, at_y, at_at, at_x, at_eps = table[HEAD : HEAD + 11]
        at_best, at_distance, at_odd, at_out, at_walker = table[HEAD + 11 :]
        rates, logits = carray(pointer(at_rates, dtype), 3), carray(pointer(at_logits, logit), (s, k, classes))
        at, out = carray(pointer(at_at, dtype), (s, k, n)), carray(pointer(at_out, dtype), (s, k, n))
        x, best = carray(pointer(at_x, dtype), (s, n)), carray(pointer(at_best, dtype), (s, n))
        eps, distance = carray(pointer(at_eps, dtype), s), carray(pointer(at_distance, dtype), s)
        y, walker = carray(pointer(at_y, types.int64), (s, k)), carray(pointer(at_walker, types.int64), s)
        odd = carray(pointer(at_odd, types.uint8), s)
        for i in range(first, end):
            nearest = -1
            for j in range(k):
                seen = _class(logits[i, j])
                odd[i] |= seen < 0
                wrong = seen >= 0 and seen != y[i, j]
                length = _draw_away(squared, at[i, j], x[i], rates[2] if wrong else as_numpy(0), out[i, j])
                if wrong and length < distance[i]:
                    distance[i], nearest = length, j
            if nearest >= 0:
                _copy(at[i, nearest], best[i])
            walker[i] = nearest if distance[i] <= eps[i] else -1

    return kernel(body)


@_wary
def _class(logits: Any) -> int:
    """The index of the largest (the first if tied); -1 if one is not finite."""
    found = 0
    for j in range(len(logits)):
        if not np.isfinite(logits[j]):
            return -1
        if logits[j] > logits[found]:
            found = j
    return found


@_wary
def _clean(slope: Any, gap: Any, w: Any) -> tuple[Any, int]:
    """The slope in w and its gap, both 0 if not finite; and whether they were finite."""
    zero, one = w.dtype.type(0), w.dtype.type(1)
    odd = zero
    for i in range(len(slope)):
        value = slope[i]
        odd += zero if abs(value) < np.inf else one
        w[i] = value
    if odd == zero and np.isfinite(gap):
        return gap, 1
    for i in range(len(w)):
        w[i] = zero
    return zero, 0


@_inner
def _between(w: Any, point: Any, home: Any) -> Any:
    """<w, home - point>."""
    total = w.dtype.type(0)
    for i in range(len(w)):
        total += w[i] * (home[i] - point[i])
    return total


@_inner
def _weight(a: Any, b: Any, rates: Any) -> Any:
    """The weight of x's own projection: smaller for a shorter step from the current point."""
    floor = rates.dtype.type(FLOOR)
    a, b = max(a, floor), max(b, floor)
    return min(a / (a + b), rates[0])


@_inner
def _mix(point: Any, here: Any, home: Any, there: Any, alpha: Any, eta: Any, out: Any) -> None:
    """The weighted mean of both steps, extended by eta."""
    for i in range(len(out)):
        end, end_home = point[i] + eta * here[i], home[i] + eta * there[i]
        out[i] = end + alpha * (end_home - end)


@_inner
def _draw_away(squared: int, point: Any, home: Any, rate: Any, out: Any) -> Any:
    """Move the point away from home by a share of its distance; returns the distance."""
    zero = point.dtype.type(0)
    longest, total = zero, zero
    for i in range(len(point)):
        gone = point[i] - home[i]
        out[i] = point[i] + gone * rate
        total += gone * gone
        gone = abs(gone)
        longest = gone if gone > longest else longest
    return np.sqrt(total) if squared else longest


@_inner
def _copy(source: Any, target: Any) -> None:
    for i in range(len(source)):  # slice assignments take seconds to compile
        target[i] = source[i]


# -- the shortest step onto a hyperplane, row by row -------------------------------------------------------------------


@_inner
def _onto(squared: int, w: Any, gap: Any, point: Any, low: Any, high: Any, work: Any) -> Any:
    """`fab_plane.plane_step` from one point (n,) in a box, for L2 if `squared` and for Linf otherwise.

    The step is left in the first of four rows of work (4, n); its norm is returned.
    """
    far = w.dtype.type(FAR)
    room, weight, full, gain = work[0], work[1], work[2], work[3]
    _room(w, gap, point, low, high, room)
    if squared:
        peak = _peak(w)
        level = _level_l2(w, abs(gap), peak, room, weight, full, gain)
        return np.sqrt(_step_l2(w, gap, min(level, far), peak, room))
    return _step_linf(w, gap, _level_linf(w, abs(gap), room, weight, gain), room)


@_inner
def _room(w: Any, gap: Any, point: Any, low: Any, high: Any, room: Any) -> None:
    """The room of each coordinate towards the plane; 0 without a slope."""
    rises, zero, far = gap < 0, w.dtype.type(0), w.dtype.type(FAR)
    for i in range(len(w)):
        slope, above, below = w[i], high[i] - point[i], point[i] - low[i]  # before any branch, or it is not vectorised
        ahead = above if (slope > zero) == rises else below
        ahead = ahead if ahead < far else far
        ahead = ahead if ahead > zero else zero
        room[i] = ahead if slope != zero else zero


@_inner
def _raise_level(weight: Any, full: Any, gain: Any, gap: Any, found: Any) -> Any:
    """Newton's next level: the coordinates not full at `found` close the remaining gap."""
    zero = full.dtype.type(0)
    pull, closed = zero, zero
    for i in range(len(full)):
        free, pulls, closes = full[i] > found, weight[i], gain[i]
        pull += pulls if free else zero
        closed += zero if free else closes
    rest = gap - closed
    if pull > zero:
        return max(rest, zero) / pull
    return full.dtype.type(np.inf) if rest > zero else found


@_inner
def _level(weight: Any, full: Any, gain: Any, gap: Any) -> Any:
    found = _raise_level(weight, full, gain, gap, full.dtype.type(-1))  # from below: every coordinate is free
    for _ in range(len(full) + 1):
        then = _raise_level(weight, full, gain, gap, found)
        if not then > found:
            break
        found = then
    return max(found, full.dtype.type(0))  # without slope and gap it has not increased


@_inner
def _level_linf(w: Any, gap: Any, room: Any, weight: Any, gain: Any) -> Any:
    for i in range(len(w)):
        pull = abs(w[i])
        weight[i], gain[i] = pull, pull * room[i]
    return _level(weight, room, gain, gap)


@_inner
def _level_l2(w: Any, gap: Any, peak: Any, room: Any, weight: Any, full: Any, gain: Any) -> Any:
    """Slopes are divided by the largest, because squares of tiny ones would underflow."""
    zero, one, far = w.dtype.type(0), w.dtype.type(1), w.dtype.type(FAR)
    for i in range(len(w)):
        slope, ahead = abs(w[i]) / peak, room[i]
        weight[i], gain[i] = slope * slope, slope * ahead
        ratio = ahead / (slope if slope > zero else one)
        full[i] = ratio if ratio < far else far
    return _level(weight, full, gain, gap / peak)


@_inner
def _peak(w: Any) -> Any:
    """The largest slope; 1 if all are zero."""
    zero = w.dtype.type(0)
    peak = zero
    for i in range(len(w)):
        slope = abs(w[i])
        peak = slope if slope > peak else peak
    return peak if peak > zero else w.dtype.type(1)


@_inner
def _step_linf(w: Any, gap: Any, level: Any, room: Any) -> Any:
    """The step min(level, room) towards the plane, written over the room; returns the largest coordinate."""
    zero, turn = w.dtype.type(0), w.dtype.type(1 if gap < 0 else -1)
    longest = zero
    for i in range(len(w)):
        gone = room[i]
        gone = gone if gone < level else level
        longest = gone if gone > longest else longest
        room[i] = turn * np.copysign(gone, w[i])
    return longest


@_inner
def _step_l2(w: Any, gap: Any, level: Any, peak: Any, room: Any) -> Any:
    """The step min(level |w| / peak, room) likewise; returns the sum of squares."""
    total, turn = w.dtype.type(0), w.dtype.type(1 if gap < 0 else -1)
    for i in range(len(w)):
        gone, far = room[i], level * (abs(w[i]) / peak)
        gone = gone if gone < far else far
        total += gone * gone
        room[i] = turn * np.copysign(gone, w[i])
    return total
