"""The fused selective scan for one core: discretise, step, read out and gate without materialising (b, l, d, n).

The work is split into tasks: one sequence times one block of channels. A task keeps its state as (n, lanes) in its own
buffer, so that the inner loop runs over channels and vectorises. The backward takes the saved state before each chunk,
recomputes that chunk's states and runs it in reverse. Tasks share no sum: sums over sequences or blocks are written
to separate rows and added by the caller in a fixed order.

Absent inputs and outputs are arrays of size 0. `lanes` is the block's width, a multiple of 8; the lanes beyond the last
channel hold zeros. Numba's cache follows this file only: touch it when `exp_numba` changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from resolvent.ops.selective_scan.inputs import CHUNK
from resolvent.runtime.exp_numba import exp

Array = np.ndarray[Any, Any]
_entry = njit(nogil=True, cache=True)
# Helpers are compiled into their callers: no Python entry point, and no division-by-zero checks in the inner loops.
_inside: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_inner = njit(fastmath={"contract"}, **_inside)
_inner_sum = njit(fastmath={"contract", "reassoc"}, **_inside)  # sums over lanes are vectorised in another, fixed order
DT, DRIVE, U, G, READ, GDRIVE, GDT = range(7)  # rows of a task's scratch: dt, dt u, u, gradient of y, C.h, and two sums


class Arrays(NamedTuple):
    """The inputs; A is transposed."""

    u: Array  # (b, l, d)
    dt: Array  # (b, l, d)
    A: Array  # (n, d)
    B: Array  # (b, l, n)
    C: Array  # (b, l, n)
    D: Array  # (d,)
    z: Array  # (b, l, d) or absent
    h0: Array  # (b, d, n) or absent
    reset: Array  # (b, l) or absent: nonzero where the state is reset before the step


class Results(NamedTuple):
    """The outputs of the forward."""

    y: Array  # (b, l, d)
    h_last: Array  # (b, d, n)
    saved: Array  # (b, chunks, n, d) or absent


class Upstream(NamedTuple):
    """The inputs of the backward."""

    saved: Array  # (b, chunks, n, d)
    gy: Array  # (b, l, d)
    gh: Array  # (b, d, n)


class Gradients(NamedTuple):
    """The outputs of the backward; A, D per sequence and B, C per block."""

    u: Array  # (b, l, d)
    dt: Array  # (b, l, d)
    A: Array  # (b, n, d)
    B: Array  # (blocks, b, l, n)
    C: Array  # (blocks, b, l, n)
    D: Array  # (b, d)
    z: Array  # (b, l, d) or absent
    h0: Array  # (b, d, n)


class Place(NamedTuple):
    """The position of a task: its sequence, its block, and the block's first channel and width."""

    i: int
    block: int
    start: int
    width: int


class Scratch(NamedTuple):
    """A task's own memory."""

    a: Array  # (n, lanes) the block of A
    row: Array  # (7, lanes)
    lam: Array  # (n, lanes) gradient of the state
    gA: Array  # (n, lanes)
    h: Array  # (CHUNK + 1, n, lanes) states of a chunk, preceded by the one before it
    a_bar: Array  # (CHUNK, n, lanes)


# -- forward -----------------------------------------------------------------------------------------------------------


@_entry
def forward_tasks(tasks: Any, lanes: int, x: Arrays, out: Results, reverse: bool) -> None:
    """Run the tasks numbered tasks[0] to tasks[1] - 1."""
    l, n = x.u.shape[1], x.A.shape[0]
    h, a = np.zeros((n, lanes), x.u.dtype), np.zeros((n, lanes), x.u.dtype)
    row = np.zeros((7, lanes), x.u.dtype)
    for task in range(tasks[0], tasks[1]):
        at = _place(task, lanes, x.u.shape[2])
        row.fill(0)
        _load(x.A, at, a)
        _load_turned(x.h0, at, h)
        for s in range(l):
            t = l - 1 - s if reverse else s
            if out.saved.size > 0 and s % CHUNK == 0:
                _store(h, at, out.saved[at.i, s // CHUNK])
            if x.reset.size > 0 and x.reset[at.i, t] != 0:
                h.fill(0)
            _load_row(x, at, t, row)
            _advance(h, a, row, x.B[at.i, t], x.C[at.i, t], _vectors(at.width))
            _write_output(x, at, t, row, out.y)
        _store_turned(h, at, out.h_last)


@_inner
def _place(task: int, lanes: int, d: int) -> Place:
    blocks = (d + lanes - 1) // lanes
    i, block = task // blocks, task % blocks
    return Place(i, block, block * lanes, min(lanes, d - block * lanes))


# Explicit loops below: slice assignments take numba seconds to compile.


@_inner
def _load(source: Array, at: Place, block: Array) -> None:
    """(n, d) -> (n, lanes), zeros beyond the last channel."""
    block.fill(0)
    for k in range(block.shape[0]):
        for j in range(at.width):
            block[k, j] = source[k, at.start + j]


@_inner
def _load_turned(source: Array, at: Place, block: Array) -> None:
    """(b, d, n) -> (n, lanes), zeros where the source is absent."""
    block.fill(0)
    if source.size > 0:
        for k in range(block.shape[0]):
            for j in range(at.width):
                block[k, j] = source[at.i, at.start + j, k]


@_inner
def _store(block: Array, at: Place, target: Array) -> None:
    """(n, lanes) -> (n, d)."""
    for k in range(block.shape[0]):
        for j in range(at.width):
            target[k, at.start + j] = block[k, j]


@_inner
def _store_turned(block: Array, at: Place, target: Array) -> None:
    """(n, lanes) -> (b, d, n)."""
    for k in range(block.shape[0]):
        for j in range(at.width):
            target[at.i, at.start + j, k] = block[k, j]


@_inner
def _vectors(width: int) -> int:
    """The width rounded up to whole vectors."""
    return (width + 7) // 8 * 8


@_inner
def _load_row(x: Arrays, at: Place, t: int, row: Array) -> None:
    stop = at.start + at.width
    u, dt, D = x.u[at.i, t, at.start : stop], x.dt[at.i, t, at.start : stop], x.D[at.start : stop]
    for j in range(at.width):  # two loops: with fewer arrays each, the compiler can prove that none overlap
        row[DT, j] = dt[j]
        row[DRIVE, j] = dt[j] * u[j]
    for j in range(at.width):
        row[U, j] = u[j]
        row[READ, j] = D[j] * u[j]


@_inner
def _advance(h: Array, a: Array, row: Array, B: Array, C: Array, width: int) -> None:
    """One step of every state, and its read-out."""
    for k in range(h.shape[0]):
        b, c = B[k], C[k]
        for j in range(width):
            state = exp(row[DT, j] * a[k, j]) * h[k, j] + row[DRIVE, j] * b
            h[k, j] = state
            row[READ, j] += state * c


@_inner
def _write_output(x: Arrays, at: Place, t: int, row: Array, y: Array) -> None:
    stop = at.start + at.width
    target = y[at.i, t, at.start : stop]
    if x.z.size == 0:
        for j in range(at.width):
            target[j] = row[READ, j]
        return
    z = x.z[at.i, t, at.start : stop]
    for j in range(at.width):
        target[j] = row[READ, j] * (z[j] * _sigmoid(z[j]))


@_inner
def _sigmoid(z: Any) -> Any:
    one = type(z)(1)  # an integer 1 would promote float32
    return one / (one + exp(-z))


# -- backward ----------------------------------------------------------------------------------------------------------


@_entry
def backward_tasks(tasks: Any, lanes: int, x: Arrays, up: Upstream, out: Gradients, reverse: bool) -> None:
    """Run the tasks numbered tasks[0] to tasks[1] - 1."""
    n, dtype = x.A.shape[0], x.u.dtype
    small = (n, lanes)
    w = Scratch(
        np.zeros(small, dtype),
        np.zeros((7, lanes), dtype),
        np.zeros(small, dtype),
        np.zeros(small, dtype),
        np.zeros((CHUNK + 1, n, lanes), dtype),
        np.zeros((CHUNK, n, lanes), dtype),
    )
    for task in range(tasks[0], tasks[1]):
        at = _place(task, lanes, x.u.shape[2])
        w.row.fill(0)
        w.gA.fill(0)
        _load(x.A, at, w.a)
        _load_turned(up.gh, at, w.lam)
        for j in range(at.width):
            out.D[at.i, at.start + j] = 0
        for chunk in range(up.saved.shape[1] - 1, -1, -1):
            _load(up.saved[at.i, chunk], at, w.h[0])
            _recompute_chunk(x, w, at, chunk, reverse)
            _retreat_chunk(x, w, at, chunk, reverse, up.gy, out)
        _store(w.gA, at, out.A[at.i])
        _store_turned(w.lam, at, out.h0)


@_inner
def _recompute_chunk(x: Arrays, w: Scratch, at: Place, chunk: int, reverse: bool) -> None:
    l = x.u.shape[1]
    for s in range(chunk * CHUNK, min(l, (chunk + 1) * CHUNK)):
        t = l - 1 - s if reverse else s
        m = s - chunk * CHUNK
        _load_row(x, at, t, w.row)
        if x.reset.size > 0 and x.reset[at.i, t] != 0:
            _begin(w, m, x.B[at.i, t], _vectors(at.width))
        else:
            _recompute(w, m, x.B[at.i, t], _vectors(at.width))


@_inner
def _recompute(w: Scratch, m: int, B: Array, width: int) -> None:
    """Recompute step m of a chunk, storing its multiplier and its state."""
    before, after, a_bar, a, row = w.h[m], w.h[m + 1], w.a_bar[m], w.a, w.row
    for k in range(a.shape[0]):
        b = B[k]
        for j in range(width):
            multiplier = exp(row[DT, j] * a[k, j])
            a_bar[k, j] = multiplier
            after[k, j] = multiplier * before[k, j] + row[DRIVE, j] * b


@_inner
def _begin(w: Scratch, m: int, B: Array, width: int) -> None:
    """The same where the state is reset: nothing is carried over."""
    after, a_bar, row = w.h[m + 1], w.a_bar[m], w.row
    for k in range(after.shape[0]):
        b = B[k]
        for j in range(width):
            a_bar[k, j] = 0
            after[k, j] = row[DRIVE, j] * b


@_inner
def _retreat_chunk(x: Arrays, w: Scratch, at: Place, chunk: int, reverse: bool, gy: Array, out: Gradients) -> None:
    l = x.u.shape[1]
    for s in range(min(l, (chunk + 1) * CHUNK) - 1, chunk * CHUNK - 1, -1):
        t = l - 1 - s if reverse else s
        m = s - chunk * CHUNK
        _load_row(x, at, t, w.row)
        _enter(gy[at.i, t], at, w.row)
        if x.z.size > 0:
            _ungate(x, w, at, t, m, out.z)
        sums = out.B[at.block, at.i, t], out.C[at.block, at.i, t]
        _retreat(w, m, x.B[at.i, t], x.C[at.i, t], sums, _vectors(at.width))
        _write_gradients(x, w.row, at, t, out)


@_inner
def _enter(gy: Array, at: Place, row: Array) -> None:
    for j in range(at.width):
        row[G, j] = gy[at.start + j]
        row[GDRIVE, j] = 0
        row[GDT, j] = 0


@_inner
def _ungate(x: Arrays, w: Scratch, at: Place, t: int, m: int, gz: Array) -> None:
    """Gradient of z, and that of the ungated output into row G; row READ is completed to the ungated output."""
    row, h, C = w.row, w.h[m + 1], x.C[at.i, t]
    for k in range(h.shape[0]):
        c = C[k]
        for j in range(_vectors(at.width)):
            row[READ, j] += h[k, j] * c
    stop = at.start + at.width
    z, target = x.z[at.i, t, at.start : stop], gz[at.i, t, at.start : stop]
    for j in range(at.width):
        sigma = _sigmoid(z[j])
        target[j] = row[G, j] * row[READ, j] * (sigma + z[j] * sigma * _sigmoid(-z[j]))
        row[G, j] *= z[j] * sigma


@_inner_sum
def _retreat(w: Scratch, m: int, B: Array, C: Array, sums: tuple[Array, Array], width: int) -> None:
    """One step back: lam_t = C_t g_t + a_bar_{t+1} lam_{t+1}. The block's gradients of B_t and C_t go to `sums`."""
    before, after, a_bar, a, row, lam, gA = w.h[m], w.h[m + 1], w.a_bar[m], w.a, w.row, w.lam, w.gA
    for k in range(a.shape[0]):
        b, c = B[k], C[k]
        gb, gc = type(b)(0), type(b)(0)
        for j in range(width):
            gc += row[G, j] * after[k, j]
            now = lam[k, j] + row[G, j] * c
            gb += now * row[DRIVE, j]
            row[GDRIVE, j] += now * b
            now = now * a_bar[k, j]
            lam[k, j] = now
            q = now * before[k, j]  # gradient of dt_t A
            row[GDT, j] += q * a[k, j]
            gA[k, j] += q * row[DT, j]
        sums[0][k], sums[1][k] = gb, gc


@_inner
def _write_gradients(x: Arrays, row: Array, at: Place, t: int, out: Gradients) -> None:
    stop = at.start + at.width
    gu, gdt = out.u[at.i, t, at.start : stop], out.dt[at.i, t, at.start : stop]
    D, gD = x.D[at.start : stop], out.D[at.i, at.start : stop]
    for j in range(at.width):
        gu[j] = row[GDRIVE, j] * row[DT, j] + D[j] * row[G, j]
    for j in range(at.width):
        gdt[j] = row[GDT, j] + row[GDRIVE, j] * row[U, j]
    for j in range(at.width):
        gD[j] += row[G, j] * row[U, j]
