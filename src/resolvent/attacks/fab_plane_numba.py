"""FAB's shortest step onto a hyperplane on the CPU, compiled by numba: a row stays in the cache from first to last.

Newton's method as in `fab_plane.level`, without a bound on its rounds: it rises in every one and meets a kink at most
once. Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from torch import Tensor

from resolvent.scan.memory import fresh_like, plain
from resolvent.scan.team import HEAD, kernel, pointer, run, share
from resolvent.scan.workers import threads_for

FAR = 1e18  # as good as infinitely far: its square is still a number
PASSES = 8  # over a row, about
_TYPES = {torch.float32: types.float32, torch.float64: types.float64}
_inner: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums vectorise in another, fixed, order


@_inner
def _room(w: Any, gap: Any, down: Any, up: Any, far: Any, room: Any) -> None:
    """How far each coordinate may go towards the plane."""
    rises, zero = gap < 0, gap * 0
    for i in range(len(w)):
        slope, above, below = w[i], up[i], down[i]  # loaded before any choice, or the loop gets no vectors
        ahead = above if (slope > zero) == rises else below
        ahead = ahead if ahead < far else far
        room[i] = ahead if slope != zero else zero


@_inner
def _raised(weight: Any, full: Any, gain: Any, gap: Any, found: Any) -> Any:
    """Newton's next level: the coordinates that are not full at `found` close what the others leave open."""
    zero = gap * 0
    pull, closed = zero, zero
    for i in range(len(full)):
        free, pulls, closes = full[i] > found, weight[i], gain[i]
        pull += pulls if free else zero
        closed += zero if free else closes
    rest = gap - closed
    if pull > 0:
        return max(rest, gap * 0) / pull
    return gap * 0 + np.inf if rest > 0 else found


@_inner
def _level(weight: Any, full: Any, gain: Any, gap: Any) -> Any:
    found = _raised(weight, full, gain, gap, gap * 0 - 1)  # from below: every coordinate is free
    for _ in range(len(full) + 1):
        then = _raised(weight, full, gain, gap, found)
        if not then > found:
            break
        found = then
    return found


@_inner
def _linf(w: Any, gap: Any, room: Any, weight: Any, gain: Any) -> Any:
    for i in range(len(w)):
        weight[i] = abs(w[i])
        gain[i] = weight[i] * room[i]
    return _level(weight, room, gain, abs(gap))


@_inner
def _l2(w: Any, gap: Any, room: Any, far: Any, work: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """(level, largest slope): slopes are divided by it, because squares of tiny ones must not vanish."""
    weight, full, gain = work
    peak = gap * 0
    for i in range(len(w)):
        peak = max(peak, abs(w[i]))
    peak = peak if peak > 0 else gap * 0 + 1
    for i in range(len(w)):
        slope = abs(w[i]) / peak
        weight[i] = slope * slope
        full[i] = min(room[i] / slope, far) if slope > 0 else gap * 0
        gain[i] = slope * room[i]
    return _level(weight, full, gain, abs(gap) / peak), peak


@_inner
def _step(w: Any, gap: Any, level: Any, scale: Any, room: Any, out: Any) -> None:
    """Towards the plane by min(level, room), or with a scale by min(level |w| / scale, room)."""
    rises, zero = gap < 0, gap * 0
    for i in range(len(w)):
        slope, gone = w[i], room[i]
        far = level * (abs(slope) / scale) if scale > zero else level
        gone = far if far < gone else gone
        gone = gone if (slope > zero) == rises else -gone
        out[i] = gone if slope != zero else zero


def _kernel(dtype: Any) -> Any:
    """Tasks are rows; row r has the slope of row r % s."""
    as_numpy = getattr(np, str(dtype))

    def body(p: Any) -> None:
        table = carray(p, HEAD + 9)
        first, end = share(table)
        squared, rows, s, n, at_w, at_gap, at_down, at_up, at_out = table[HEAD:]
        w, gap = carray(pointer(at_w, dtype), (s, n)), carray(pointer(at_gap, dtype), (rows,))
        down, up = carray(pointer(at_down, dtype), (rows, n)), carray(pointer(at_up, dtype), (rows, n))
        out, far = carray(pointer(at_out, dtype), (rows, n)), as_numpy(FAR)
        room, weight, full, gain = (
            np.empty(n, as_numpy),
            np.empty(n, as_numpy),
            np.empty(n, as_numpy),
            np.empty(n, as_numpy),
        )
        for r in range(first, end):
            own = w[r % s]
            _room(own, gap[r], down[r], up[r], far, room)
            if squared:
                level, peak = _l2(own, gap[r], room, far, (weight, full, gain))
                _step(own, gap[r], min(level, far), peak, room, out[r])
            else:
                _step(own, gap[r], _linf(own, gap[r], room, weight, gain), as_numpy(0), room, out[r])

    return kernel(body)


@cache
def _compiled(dtype: torch.dtype) -> Any:
    return _kernel(_TYPES[dtype])


def plane_step(norm: str, w: Tensor, gap: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """`fab_plane.torch_step` for Linf and L2: w (..., n), gap (..., b), down and up (..., b, n)."""
    w, gap, down, up = plain(w), plain(gap), plain(down), plain(up)
    out, n = fresh_like(down), w.shape[-1]
    rows, shared = gap.numel(), w.numel() // max(n, 1)
    at = w.data_ptr(), gap.data_ptr(), down.data_ptr(), up.data_ptr(), out.data_ptr()
    run(_compiled(w.dtype), (norm == "l2", rows, shared, n, *at), rows, threads_for(rows * n * PASSES))
    return out
