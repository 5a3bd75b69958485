"""Square on a CPU, compiled by numba: everything around a model pass in three calls.

`look_ahead` lists the windows of a pass, `corner` and `bump` compute their points, `judge_windows` keeps the first
better one of each sample. Each follows its counterpart in torch's operations line by line (square_ahead.py,
square_step.py). Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from resolvent.ops.ascent import LEFT, SIGNS, TOP, TURN

_TINY = 1e-12
_DOUBLE = float(np.finfo(np.float64).eps)
_plain: Any = njit(cache=True, nogil=True, error_model="numpy")
_summing: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


@_plain
def look_ahead(queries: Any, stop: int, depth: int) -> Any:
    """Sample and query of every window: up to `depth` per sample, none at `stop` or beyond."""
    count = 0
    for s in range(len(queries)):
        count += max(min(stop - queries[s], depth), 0)
    sample, query = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    for s in range(len(queries)):
        for q in range(queries[s], min(queries[s] + depth, stop)):
            sample[at], query[at] = s, q
            at += 1
    return sample, query


@_plain
def _start(u: Any, frame: Any, second: int) -> int:
    """The start of a window in the flattened input."""
    top, left = int(u[TOP + second] * np.float32(frame[0])), int(u[LEFT + second] * np.float32(frame[1]))
    place: int = top * frame[2] + left * frame[3]
    return place


@_plain
def _channels(u: Any, frame: Any, second: int, out: Any) -> None:
    """The start of each channel of the window: all, or those with the largest ranking numbers."""
    start, stride, count = _start(u, frame, second), frame[4], frame[5]
    before, last = np.float32(np.inf), 0
    for g in range(len(out)):
        chosen = g
        if len(out) < count:
            largest = np.float32(-1)
            for j in range(count):
                rank = u[SIGNS + count + j]
                if rank > largest and (rank < before or (rank == before and j > last)):
                    chosen, largest = j, rank
            before, last = largest, chosen
        out[g] = start + chosen * stride


@_plain
def _copy(source: Any, target: Any) -> None:
    for k in range(len(source)):  # slice assignments take seconds to compile
        target[k] = source[k]


# -- Linf --------------------------------------------------------------------------------------------------------------


@_plain
def corner(points: Any, ends: Any, thrifty: bool, sample: Any, u: Any, window: Any) -> Any:
    """`Corner.next`: points (b, n) of the samples, u (m, width) -> (m, n)."""
    low, high = ends
    frame, inner = window
    out = np.empty((len(sample), points.shape[1]), points.dtype)
    channel = np.empty(frame[6], np.int64)
    for i in range(len(sample)):
        s, own = sample[i], u[i]
        _copy(points[s], out[i])
        _channels(own, frame, 0, channel)
        turn = thrifty and not _changes(points[s], low[s], high[s], own, channel, inner)
        for g in range(len(channel)):
            side = high[s] if (own[SIGNS + g] < 0.5) != turn else low[s]
            for a in range(len(inner)):
                at = channel[g] + inner[a]
                out[i, at] = side[at]
    return out


@_plain
def _changes(best: Any, low: Any, high: Any, u: Any, channel: Any, inner: Any) -> bool:
    for g in range(len(channel)):
        side = high if u[SIGNS + g] < 0.5 else low
        for a in range(len(inner)):
            at = channel[g] + inner[a]
            if side[at] != best[at]:
                return True
    return False


# -- L2 ----------------------------------------------------------------------------------------------------------------


@_summing
def bump(points: Any, region: Any, shape: Any, sample: Any, u: Any, window: Any) -> Any:
    """`Bump.next` for L2: region (x, eps, low, high, free), of which the last three may be empty; shape (2, a)."""
    x, eps, low, high, free = region
    frame, inner = window
    out = np.empty((len(sample), points.shape[1]), points.dtype)
    gain, give = np.empty(frame[6], np.int64), np.empty(frame[6], np.int64)
    new = np.empty((frame[6], len(inner)), points.dtype)
    one = points.dtype.type(1)
    less = 4 * np.float64(np.nextafter(one, one + one) - one) + points.shape[1] * _DOUBLE  # as inward.slack
    for i in range(len(sample)):
        s, own, delta = sample[i], u[i], out[i]
        _channels(own, frame, 0, gain)
        _channels(own, frame, 2, give)
        for k in range(len(delta)):
            delta[k] = points[s, k] - x[s, k]
        radius = eps[s, 0]
        unused = max(radius * radius - _size(delta), radius * 0) / len(gain)
        _shape(own, shape[1] if own[TURN] < 0.5 else shape[0], new)
        if len(free):
            _free(free[s], gain, inner, new)
        _move(delta, gain, give, inner, new, unused)
        _outward(delta, x[s], radius, less)
        if len(low):
            r = s if len(low) > 1 else 0
            for k in range(len(delta)):
                delta[k] = min(max(delta[k], low[r, k]), high[r, k])
    return out


@_summing
def _size(part: Any) -> Any:
    size = part.dtype.type(0)
    for k in range(len(part)):
        size += part[k] * part[k]
    return size


@_summing
def _sum_squares(delta: Any, start: int, inner: Any) -> Any:
    size = delta.dtype.type(0)
    for a in range(len(inner)):
        size += delta[start + inner[a]] * delta[start + inner[a]]
    return size


@_summing
def _shape(u: Any, drawn: Any, new: Any) -> None:
    """The bump with its sign."""
    for g in range(len(new)):
        for a in range(len(drawn)):
            new[g, a] = -drawn[a] if u[SIGNS + g] < 0.5 else drawn[a]


@_summing
def _free(free: Any, gain: Any, inner: Any, new: Any) -> None:
    for g in range(len(gain)):
        for a in range(len(inner)):
            new[g, a] *= free[gain[g] + inner[a]]


@_summing
def _move(delta: Any, gain: Any, give: Any, inner: Any, new: Any, unused: Any) -> None:
    """Empty one window and move both windows' norm into the other, along the mean of its direction and the bump."""
    tiny = delta.dtype.type(_TINY)
    for g in range(len(gain)):
        own = np.sqrt(_sum_squares(delta, gain[g], inner)) + tiny
        for a in range(len(inner)):
            new[g, a] += delta[gain[g] + inner[a]] / own
    for g in range(len(gain)):
        held = _sum_squares(delta, give[g], inner)
        for a in range(len(inner)):
            delta[give[g] + inner[a]] = 0
        held += _sum_squares(delta, gain[g], inner)  # channels are disjoint: only this one was emptied here
        length = np.sqrt(held + unused) / (np.sqrt(_size(new[g])) + tiny)
        for a in range(len(inner)):
            delta[gain[g] + inner[a]] = new[g, a] * length


@_summing
def _long(delta: Any) -> Any:
    total = np.float64(0)
    for k in range(len(delta)):
        part = np.float64(delta[k])
        total += part * part
    return np.sqrt(total)


@_plain
def _outward(delta: Any, x: Any, radius: Any, less: float) -> None:
    """x plus delta scaled to the radius, minus the share `less` for rounding, towards x."""
    scale = np.float64(radius) * (1 - less) / max(_long(delta), _TINY)
    for k in range(len(delta)):
        delta[k] = delta[k] * scale  # rounded here
        moved = x[k] + delta[k]
        delta[k] = np.nextafter(moved, x[k]) if abs(moved - x[k]) > abs(delta[k]) else moved


# -- model outputs ----------------------------------------------------------------------------------------------------


@_plain
def judge_windows(seen: Any, sample: Any, best: Any, state: Any, labels: Any) -> Any:
    """`Live._judge`: keep the first better point of each sample; returns (accepted, judged).

    seen (trial (m, n), logits (m, classes), loss (m,) or empty for the margin), best the points (b, n) and state
    (loss, logits, bad, broken, queries) of the samples.
    """
    trial, logits, worth = seen
    loss, kept, bad, broken, queries = state
    accepted, count, done = 0, 0, -1
    for i in range(len(sample)):
        s = sample[i]
        if s == done:
            continue
        count += 1
        queries[s] += 1
        fooled, value = _verdict(logits[i], labels[s])
        if len(worth):
            value = worth[i]
        if value == -np.inf:
            bad[s] = True
        elif fooled or value > loss[s]:
            _copy(trial[i], best[s])
            _copy(logits[i], kept[s])
            loss[s], broken[s] = value, fooled
            accepted, done = accepted + 1, s
    return accepted, count


@_plain
def _verdict(logits: Any, y: int) -> Any:
    """Whether another class is predicted, and the margin; -inf if an output is not finite."""
    lowest = logits.dtype.type(-np.inf)
    top, first, finite = lowest, 0, True
    for j in range(len(logits)):
        finite = finite and np.isfinite(logits[j])
        if logits[j] > logits[first]:
            first = j
        if j != y and logits[j] > top:
            top = logits[j]
    return first != y, top - logits[y] if finite else lowest
