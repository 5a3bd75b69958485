"""APGD's move on a CPU, compiled by numba: direction, step and both projections of a sample in one pass.

It follows `apgd_move.torch_move`, `Threat.steepest`, `Region.project` and `ball.project_l2` sample by sample; all of it
is in one file, because numba's disk cache checks only the kernel's own file. Imported by the dispatcher only,
because numba is an extra.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from resolvent.runtime.memory import fresh_like, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for

if TYPE_CHECKING:
    from resolvent.attacks.threat.region import Region
    from resolvent.attacks.threat.threat import Threat

_ROUNDS = 64  # constants of ball.project_l2, region.Region and threat._unit
_RISE = 2e-6
_TINY = 1e-30
_DOUBLE = float(np.finfo(np.float64).eps)
_LEAST = 1e-300  # smallest length
_SMALL = 1e-12
PASSES = 16  # approximate passes over a sample's row
# Sums and maxima are vectorised in another, fixed order; inputs here are never NaN.
_inner: Any = njit(fastmath={"contract", "reassoc", "nnan", "nsz"}, error_model="numpy")
_plain: Any = njit(error_model="numpy")


def move(
    threat: Threat, region: Region, x_adv: Tensor, x_old: Tensor, grad: Tensor, step: Tensor, momentum: float
) -> Tensor:
    """`apgd_move.torch_move` for Linf and L2 without a mask."""
    b, n, dtype = x_adv.shape[0], x_adv[0].numel(), x_adv.dtype
    x_adv, x_old, grad, step, x = plain(x_adv), plain(x_old), plain(grad), plain(step), plain(region.x)
    boxed = region.low is not None and region.high is not None
    low, high = (plain(v) if boxed and v is not None else x for v in (region.low, region.high))
    eps, out, share_of = plain(region.eps), fresh_like(x_adv), _number(momentum, dtype)
    places = (v.data_ptr() for v in (share_of, x_adv, x_old, grad, step, x, eps, low, high, out))
    settings = region.norm == "l2", boxed, momentum < 1, b, n, len(low), len(high), *places
    run(compile_for(_kernel, dtype), settings, b, threads_for(b * n * PASSES))
    return out


@cache
def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([value, torch.finfo(dtype).eps, torch.finfo(dtype).tiny], dtype=dtype)


def _kernel(dtype: Any) -> Any:
    """One task per sample."""
    as_numpy = getattr(np, str(dtype))

    def body(p: Any) -> None:
        table = carray(p, HEAD + 17)
        first, end = share(table)
        squared, boxed, mixes, b, n, lows, highs, at_numbers, at_x_adv, at_x_old = table[HEAD : HEAD + 10]
        at_grad, at_step, at_x, at_eps, at_low, at_high, at_out = table[HEAD + 10 :]
        numbers, eps = carray(pointer(at_numbers, dtype), 3), carray(pointer(at_eps, dtype), b)
        x_adv, x_old = carray(pointer(at_x_adv, dtype), (b, n)), carray(pointer(at_x_old, dtype), (b, n))
        grad, step = carray(pointer(at_grad, dtype), (b, n)), carray(pointer(at_step, dtype), b)
        x, out = carray(pointer(at_x, dtype), (b, n)), carray(pointer(at_out, dtype), (b, n))
        low, high = carray(pointer(at_low, dtype), (lows, n)), carray(pointer(at_high, dtype), (highs, n))
        work = np.empty((3, n), as_numpy)
        for i in range(first, end):
            bottom, top, new, a = low[i % lows], high[i % highs], out[i], numbers[0]
            for stage in range(1 + mixes):  # a single call site each halves the compile time
                if stage == 1:
                    _mix(x_adv[i], x_old[i], a, new)
                elif squared:
                    _uphill(x_adv[i], grad[i], step[i], numbers[2], new)
                else:
                    _add_signs(x_adv[i], grad[i], step[i], new)
                if squared:
                    _into(new, x[i], eps[i], bottom, top, boxed, numbers[1], work)
                else:
                    clamp(new, bottom, top)

    return kernel(body)


@_inner
def _add_signs(point: Any, grad: Any, step: Any, out: Any) -> None:
    zero = grad.dtype.type(0)
    for i in range(len(out)):
        slope, far = grad[i], np.copysign(step, grad[i])
        out[i] = point[i] + (far if slope != zero else zero)


@_inner
def _length(grad: Any, tiny: Any) -> tuple[Any, Any]:
    """(length, 1), or for tiny and huge gradients (length / peak, peak), so that their squares stay in range."""
    zero, one = grad.dtype.type(0), grad.dtype.type(1)
    total = zero
    for i in range(len(grad)):
        total += grad[i] * grad[i]
    length, peak = np.sqrt(total), tiny
    if _SMALL < length < np.inf:
        return length, one
    for i in range(len(grad)):
        peak = max(peak, abs(grad[i]))
    total = zero
    for i in range(len(grad)):
        part = grad[i] / peak
        total += part * part
    return (np.sqrt(total) if total > zero else one), peak


@_inner
def _uphill(point: Any, grad: Any, step: Any, tiny: Any, out: Any) -> None:
    length, peak = _length(grad, tiny)
    for i in range(len(out)):
        out[i] = point[i] + step * (grad[i] / peak / length)


@_inner
def _mix(point: Any, old: Any, a: Any, new: Any) -> None:
    """new <- x + a (z - x) + (1 - a)(x - x_old), where z is the present `new`."""
    rest = new.dtype.type(1) - a
    for i in range(len(new)):
        new[i] = point[i] + a * (new[i] - point[i]) + rest * (point[i] - old[i])


@_inner
def clamp(point: Any, low: Any, high: Any) -> None:
    for i in range(len(point)):
        value = point[i]
        value = value if value > low[i] else low[i]
        point[i] = value if value < high[i] else high[i]


# -- the nearest point of an L2 ball intersected with a box ------------------------------------------------------------


@_plain
def _into(point: Any, x: Any, eps: Any, low: Any, high: Any, boxed: int, unit: Any, work: Any) -> None:
    """Project the point in place; work is (3, n)."""
    delta, size, cap = work[0], work[1], work[2]
    total = _apart(point, x, low, high, boxed, delta, size, cap)
    room = eps * eps
    t = min(room / max(total, x.dtype.type(_TINY)), x.dtype.type(1))
    t = _raise_factor(size, cap, room, t) if boxed else t
    _shrink(delta, np.sqrt(t), cap, boxed)
    _place(delta, x, point, size)
    less = 4 * np.float64(unit) + len(x) * _DOUBLE  # as inward.slack
    if _long(size) > np.float64(eps) * (1 - less / 2):
        _shorten(delta, x, np.float64(eps) * (1 - less), point)
    if boxed:
        clamp(point, low, high)


@_inner
def _apart(point: Any, x: Any, low: Any, high: Any, boxed: int, delta: Any, size: Any, cap: Any) -> Any:
    """delta, its squares, the squared distances to the bounds it points at; returns the sum of its squares."""
    zero = point.dtype.type(0)
    total = zero
    for i in range(len(point)):
        gone = point[i] - x[i]
        delta[i], size[i] = gone, gone * gone
        total += gone * gone
    if boxed:
        for i in range(len(point)):
            above, below, gone = high[i] - x[i], x[i] - low[i], delta[i]
            ahead = above if gone > zero else below
            ahead = ahead if ahead > zero else zero
            cap[i] = ahead * ahead if gone != zero else zero
    return total


@_inner
def _raise_factor(size: Any, cap: Any, room: Any, t: Any) -> Any:
    """The squared factor: what is clipped at the box goes to the free coordinates until nothing more is clipped."""
    zero, one, tiny, rise = size.dtype.type(0), size.dtype.type(1), size.dtype.type(_TINY), size.dtype.type(1 + _RISE)
    for _ in range(_ROUNDS):
        fixed, free = zero, zero
        for i in range(len(size)):
            mine, most = size[i], cap[i]
            cut = mine * t > most
            fixed += most if cut else zero
            free += zero if cut else mine
        rest = max(room - fixed, zero)
        raised = min(rest / max(free, tiny), one) if free > zero else one
        if not raised > t * rise:
            break
        t = raised
    return t


@_inner
def _shrink(delta: Any, factor: Any, cap: Any, boxed: int) -> None:
    """Scale each coordinate by the factor, up to its cap."""
    if boxed:
        for i in range(len(delta)):
            gone, most = delta[i] * factor, np.sqrt(cap[i])
            far = abs(gone)
            delta[i] = np.copysign(far if far < most else most, gone)
    else:
        for i in range(len(delta)):
            delta[i] = delta[i] * factor


@_plain
def _place(delta: Any, x: Any, point: Any, gone: Any) -> None:
    """x + delta, and its distance from x including rounding, which fastmath reordering would lose."""
    for i in range(len(delta)):
        point[i] = x[i] + delta[i]
        gone[i] = point[i] - x[i]


@_inner
def _long(gone: Any) -> Any:
    total = np.float64(0)
    for i in range(len(gone)):
        part = np.float64(gone[i])
        total += part * part
    return np.sqrt(total)


@_plain
def _shorten(delta: Any, x: Any, radius: Any, point: Any) -> None:
    """If accumulated rounding exceeds the radius, shorten each entry."""
    factor = min(radius / max(_long(delta), _LEAST), 1.0)
    for i in range(len(delta)):
        delta[i] = delta[i] * factor
        moved = x[i] + delta[i]
        point[i] = np.nextafter(moved, x[i]) if abs(moved - x[i]) > abs(delta[i]) else moved
