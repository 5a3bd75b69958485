"""The linear scan and its fused backward pass on the CPU, compiled by numba.

Memory is the limit, so each pass reads and writes every array once. A task is one row and a block of the states; the
inner loop runs over the states and is vectorised, with the running state in a small buffer. Tasks share nothing but
what they read, so that the number of threads cannot change a bit of the result.

Arrays: b, h, g (r, l, n); a (s, l or 1, n), where row i of b uses row (i // div) % s of a; h0 (r, n), or (0, n).

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from numpy.typing import NDArray
from torch import Tensor

from resolvent.scan.linear_rows import multiplier_rows, sum_to
from resolvent.scan.memory import fresh, plain
from resolvent.scan.team import HEAD, kernel, pointer, run, share
from resolvent.scan.workers import threads_for

Array = NDArray[Any]
PARTIAL = 128  # steps summed before the sum joins the total: keeps the rounding of long float32 sums small


def _jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """njit with fused multiply-adds (the one liberty that loses no accuracy), cached on disk where that is possible."""
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}}
    try:
        return njit(cache=True, **options)(f)
    except RuntimeError:  # no folder that could be written to
        return njit(**options)(f)


@_jit
def _forward_task(a: Array, b: Array, h0: Array, h: Array, where: tuple[int, int, int, int], reverse: bool) -> None:
    row, source, lo, hi = where
    l, w, step = b.shape[1], hi - lo, 1 if a.shape[1] > 1 else 0
    state = np.empty(w, b.dtype)
    t = l - 1 if reverse else 0
    for j in range(w):
        state[j] = b[row, t, lo + j]
        if h0.shape[0] > 0:
            state[j] += a[source, t * step, lo + j] * h0[row, lo + j]
        h[row, t, lo + j] = state[j]
    for k in range(1, l):
        t = l - 1 - k if reverse else k
        a_t, b_t, h_t = a[source, t * step, lo:hi], b[row, t, lo:hi], h[row, t, lo:hi]
        for j in range(w):
            value = a_t[j] * state[j] + b_t[j]
            state[j] = value
            h_t[j] = value


@_jit
def _backward_task(
    g: Array, a: Array, h: Array, h0: Array, out: tuple[Array, Array], where: tuple[int, int, int, int], reverse: bool
) -> None:
    """Time-varying a: γ_t = g_t + carry, ∂a_t = γ_t ‾h_{t-1}, carry = ‾a_t γ_t; ∂a has a row for every row of b."""
    ga, gb = out
    row, source, lo, hi = where
    l, w = g.shape[1], hi - lo
    carry = np.zeros(w, g.dtype)
    first = h0[row, lo:hi] if h0.shape[0] > 0 else np.zeros(w, g.dtype)
    for k in range(l - 1, -1, -1):
        t = l - 1 - k if reverse else k
        before = first if k == 0 else h[row, t + 1 if reverse else t - 1, lo:hi]
        g_t, a_t, ga_t, gb_t = g[row, t, lo:hi], a[source, t, lo:hi], ga[row, t, lo:hi], gb[row, t, lo:hi]
        for j in range(w):
            gamma = g_t[j] + carry[j]
            gb_t[j] = gamma
            ga_t[j] = gamma * np.conj(before[j])
            carry[j] = np.conj(a_t[j]) * gamma


@_jit
def _backward_task_constant(
    g: Array, a: Array, h: Array, h0: Array, out: tuple[Array, Array], where: tuple[int, int, int, int], reverse: bool
) -> None:
    """Time-invariant a: as above, with ∂a summed over time, (r, 1, n)."""
    ga, gb = out
    row, source, lo, hi = where
    l, w = g.shape[1], hi - lo
    a_t, total = a[source, 0, lo:hi], ga[row, 0, lo:hi]
    carry, part = np.zeros(w, g.dtype), np.zeros(w, g.dtype)
    first = h0[row, lo:hi] if h0.shape[0] > 0 else np.zeros(w, g.dtype)
    total[:] = 0
    for k in range(l - 1, -1, -1):
        t = l - 1 - k if reverse else k
        before = first if k == 0 else h[row, t + 1 if reverse else t - 1, lo:hi]
        g_t, gb_t = g[row, t, lo:hi], gb[row, t, lo:hi]
        for j in range(w):
            gamma = g_t[j] + carry[j]
            gb_t[j] = gamma
            part[j] += gamma * np.conj(before[j])
            carry[j] = np.conj(a_t[j]) * gamma
        if k % PARTIAL == 0:
            for j in range(w):
                total[j] += part[j]
                part[j] = 0


@_jit
def _where(task: int, n: int, width: int, div: int, sources: int) -> tuple[int, int, int, int]:
    """(row of b, row of a, first state, end of the states) of a task."""
    blocks = (n + width - 1) // width
    row, lo = task // blocks, (task % blocks) * width
    return row, (row // div) % sources, lo, min(lo + width, n)


# -- as kernels of a team: the table holds sizes, addresses and settings ----------------------------------------------


def _forward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 13)
        first, end = share(w)
        width, div, reverse, s, la, r, l, n, r0, at_a, at_b, at_h0, at_h = w[HEAD:]
        a = carray(pointer(at_a, dtype), (s, la, n))
        b = carray(pointer(at_b, dtype), (r, l, n))
        h0 = carray(pointer(at_h0, dtype), (r0, n))
        h = carray(pointer(at_h, dtype), (r, l, n))
        for i in range(first, end):
            _forward_task(a, b, h0, h, _where(i, n, width, div, s), reverse != 0)

    return kernel(body)


def _backward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 16)
        first, end = share(w)
        width, div, reverse, s, la, r, l, n, r0, lga, at_g, at_a, at_h, at_h0, at_ga, at_gb = w[HEAD:]
        g = carray(pointer(at_g, dtype), (r, l, n))
        a = carray(pointer(at_a, dtype), (s, la, n))
        h = carray(pointer(at_h, dtype), (r, l, n))
        h0 = carray(pointer(at_h0, dtype), (r0, n))
        out = carray(pointer(at_ga, dtype), (r, lga, n)), carray(pointer(at_gb, dtype), (r, l, n))
        for i in range(first, end):
            where = _where(i, n, width, div, s)
            if lga == l:
                _backward_task(g, a, h, h0, out, where, reverse != 0)
            else:
                _backward_task_constant(g, a, h, h0, out, where, reverse != 0)

    return kernel(body)


_TYPES = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.complex64: types.complex64,
    torch.complex128: types.complex128,
}


@cache
def _compiled(make: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    return make(_TYPES[dtype])


# -- torch on the outside ----------------------------------------------------------------------------------------------


def numba_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t; a has the rank of b (..., l, n) and broadcasts to it, h0 is (..., n)."""
    l, n = b.shape[-2:]
    rows = b.numel() // (l * n)
    source, div = multiplier_rows(a, b.shape)
    h = fresh(b.shape, b)
    source, b, start = plain(source), plain(b), b if h0 is None else plain(h0)
    threads = threads_for(b.numel())
    tasks, width = _plan(rows, n, threads)
    sizes = [source.numel() // (source.shape[-2] * n), source.shape[-2], rows, l, n, 0 if h0 is None else rows]
    at = [x.data_ptr() for x in (source, b, start, h)]
    run(_compiled(_forward_kernel, b.dtype), [width, div, reverse, *sizes, *at], tasks, threads)
    return h


def numba_backward(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) in one pass over g, a and h."""
    l, n = h.shape[-2:]
    rows = h.numel() // (l * n)
    source, div = multiplier_rows(a, h.shape)
    gb = fresh(h.shape, h)
    ga = fresh((*h.shape[:-2], a.shape[-2], n), h)  # summed over the broadcast rows below
    g, source, h, start = plain(g), plain(source), plain(h), h if h0 is None else plain(h0)
    threads = threads_for(h.numel())
    tasks, width = _plan(rows, n, threads)
    sizes = [source.numel() // (source.shape[-2] * n), source.shape[-2], rows, l, n, 0 if h0 is None else rows]
    at = [x.data_ptr() for x in (g, source, h, start, ga, gb)]
    run(_compiled(_backward_kernel, h.dtype), [width, div, reverse, *sizes, a.shape[-2], *at], tasks, threads)
    return sum_to(ga, a.shape), gb


def _plan(rows: int, n: int, threads: int) -> tuple[int, int]:
    """(tasks, states in a block).

    Whole rows run through memory in order, several times as fast as blocks of them do; blocks are for rows too few to
    go round, and for states too many for the cache.
    """
    blocks = max(min(-(-threads // rows), n // 64), -(-n // 4096), 1)
    width = -(-n // blocks)
    return rows * -(-n // width), width
