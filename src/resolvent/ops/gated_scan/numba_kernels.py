"""The gated scan for one core: gates, recurrence and, in the backward, every gradient, in one pass over memory each.

A task is a block of channels of one row. The values of a step are in rows of the task's own scratch, so that the inner
loops run over channels, each over few arrays (otherwise the compiler cannot prove that none overlap), and vectorise.
Tasks share no sum: the gradient of `rate` is one part per row. Absent inputs are arrays of size 0. Numba's cache
follows this file only: touch it when `exp_numba` changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from resolvent.runtime.exp_numba import exp, exp_and_expm1

Array = np.ndarray[Any, Any]
_entry = njit(nogil=True, cache=True)
# Helpers are compiled into their callers: no Python entry point, and no division-by-zero checks in the inner loops.
_inside: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_inner = njit(fastmath={"contract"}, **_inside)
PARTIAL = 128  # steps per partial sum: keeps the rounding of long float32 sums small
FLATTEST = 5e-4  # below this root its derivative, half of the reciprocal, is set to 1000
# Rows of a task's scratch: rate, r, a, the root and its value for the derivative, i, x (in the forward the drive), the
# state or the carried gradient, the gradient of the state, that times the previous state, and two sums.
RATE, R, A, ROOT, SLOPE, GATE, U, CARRY, LAM, THROUGH, PART, TOTAL, ROWS = range(13)


class Arrays(NamedTuple):
    """The inputs."""

    p: Array  # (b, l, d)
    q: Array  # (b, l, d)
    x: Array  # (b, l, d)
    rate: Array  # (d,)
    h0: Array  # (b, d) or absent
    start: Array  # (b, l) or (b, 1) or absent


class Gradients(NamedTuple):
    """The outputs of the backward; rate by rows."""

    p: Array  # (b, l, d)
    q: Array  # (b, l, d)
    x: Array  # (b, l, d)
    rate: Array  # (b, d)
    h0: Array  # (b, d)


@_inner
def _place(task: int, lanes: int, d: int) -> tuple[int, int, int]:
    """Row, first channel and end of the channels of a task."""
    blocks = (d + lanes - 1) // lanes
    lo = task % blocks * lanes
    return task // blocks, lo, min(lo + lanes, d)


@_inner
def _opens(start: Array, row: int, s: int, t: int) -> bool:
    """Whether step t, the s-th of the scan, is a document's first."""
    if start.size == 0:
        return False
    if start.shape[1] == 1:  # only for the scan's first step; equivalent for length one
        return s == 0 and start[row, 0] != 0
    return start[row, t] != 0


@_inner
def _sigmoid(x: Any) -> Any:
    one = type(x)(1)  # an integer 1 would promote float32
    return one / (one + exp(-x))


# -- forward -----------------------------------------------------------------------------------------------------------


@_entry
def forward_tasks(tasks: Any, lanes: int, x: Arrays, h: Array, reverse: bool) -> None:
    """Run the tasks numbered tasks[0] to tasks[1] - 1."""
    l, d = x.x.shape[1], x.x.shape[2]
    w = np.zeros((ROWS, lanes), x.x.dtype)
    for task in range(tasks[0], tasks[1]):
        row, lo, hi = _place(task, lanes, d)
        for j in range(hi - lo):
            w[RATE, j] = x.rate[lo + j]
            w[CARRY, j] = x.h0[row, lo + j] if x.h0.size > 0 else 0
        for s in range(l):
            t = l - 1 - s if reverse else s
            if _opens(x.start, row, s, t):
                _open(w, hi - lo)
            else:
                _decay(x.p[row, t, lo:hi], w)
            _drive(x.q[row, t, lo:hi], x.x[row, t, lo:hi], w)
            _advance(w, h[row, t, lo:hi])


@_inner
def _open(w: Array, width: int) -> None:
    for j in range(width):
        w[A, j] = 0
        w[ROOT, j] = 1


@_inner
def _decay(p: Array, w: Array) -> None:
    for j in range(p.size):
        u = w[RATE, j] * _sigmoid(p[j])
        a, e = exp_and_expm1(u)
        w[A, j] = a
        w[ROOT, j] = np.sqrt(e * (type(e)(-2) - e))


@_inner
def _drive(q: Array, x: Array, w: Array) -> None:
    for j in range(q.size):
        w[U, j] = w[ROOT, j] * (_sigmoid(q[j]) * x[j])


@_inner
def _advance(w: Array, h: Array) -> None:
    for j in range(h.size):
        state = w[A, j] * w[CARRY, j] + w[U, j]
        w[CARRY, j] = state
        h[j] = state


# -- backward ----------------------------------------------------------------------------------------------------------


@_entry
def backward_tasks(tasks: Any, lanes: int, x: Arrays, h: Array, g: Array, out: Gradients, reverse: bool) -> None:
    """Run the tasks numbered tasks[0] to tasks[1] - 1."""
    l, d = x.x.shape[1], x.x.shape[2]
    w = np.zeros((ROWS, lanes), x.x.dtype)
    first = np.zeros(lanes, x.x.dtype)
    for task in range(tasks[0], tasks[1]):
        row, lo, hi = _place(task, lanes, d)
        for j in range(hi - lo):
            w[RATE, j] = x.rate[lo + j]
            w[CARRY, j] = w[PART, j] = w[TOTAL, j] = 0
            first[j] = x.h0[row, lo + j] if x.h0.size > 0 else 0
        for s in range(l - 1, -1, -1):
            t = l - 1 - s if reverse else s
            _gates(x.p[row, t, lo:hi], w)
            if _opens(x.start, row, s, t):
                _open(w, hi - lo)
            _read(x.q[row, t, lo:hi], x.x[row, t, lo:hi], w)
            past = t + 1 if reverse else t - 1
            _retreat(g[row, t, lo:hi], h[row, past, lo:hi] if s > 0 else first[: hi - lo], w)
            _write_inputs(w, out.q[row, t, lo:hi], out.x[row, t, lo:hi])
            _write_gate(w, out.p[row, t, lo:hi])
            if s % PARTIAL == 0:
                _settle(w, hi - lo)
        for j in range(hi - lo):
            out.rate[row, lo + j] = w[TOTAL, j]
            out.h0[row, lo + j] = w[CARRY, j]


@_inner
def _gates(p: Array, w: Array) -> None:
    for j in range(p.size):
        r = _sigmoid(p[j])
        u = w[RATE, j] * r
        a, e = exp_and_expm1(u)
        root = np.sqrt(e * (type(e)(-2) - e))
        least = type(e)(FLATTEST)
        w[R, j] = r
        w[A, j] = a
        w[ROOT, j] = root
        w[SLOPE, j] = root if root > least else least


@_inner
def _read(q: Array, x: Array, w: Array) -> None:
    for j in range(q.size):
        w[GATE, j] = _sigmoid(q[j])
        w[U, j] = x[j]


@_inner
def _retreat(g: Array, before: Array, w: Array) -> None:
    """γ_t = g_t + c_{t+1}, c_t = a_t γ_t, and c_t h_{t-1}."""
    for j in range(g.size):
        lam = g[j] + w[CARRY, j]
        back = w[A, j] * lam
        w[LAM, j] = lam
        w[CARRY, j] = back
        w[THROUGH, j] = back * before[j]


@_inner
def _write_inputs(w: Array, gq: Array, gx: Array) -> None:
    for j in range(gq.size):
        gate = w[GATE, j]
        drawn = w[LAM, j] * w[ROOT, j] * gate
        gx[j] = drawn
        gq[j] = drawn * w[U, j] * (type(gate)(1) - gate)


@_inner
def _write_gate(w: Array, gp: Array) -> None:
    for j in range(gp.size):
        r, a = w[R, j], w[A, j]
        of_log = w[THROUGH, j] - w[LAM, j] * w[GATE, j] * w[U, j] * (a * a) / w[SLOPE, j]
        gp[j] = of_log * w[RATE, j] * (r * (type(r)(1) - r))
        w[PART, j] += of_log * r


@_inner
def _settle(w: Array, width: int) -> None:
    for j in range(width):
        w[TOTAL, j] += w[PART, j]
        w[PART, j] = 0
