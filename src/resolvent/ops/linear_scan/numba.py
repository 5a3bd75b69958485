"""The linear scan and its fused backward pass on the CPU, compiled by numba.

Memory bandwidth is the limit, so each pass reads and writes every array once. A task is one row and a block of states;
the inner loop runs over the states, vectorised as far as possible (`linear_rows_numba`). Tasks share only read-only
data, so that results do not depend on the number of threads, bit for bit.

Arrays: b, h, g (r, l, n); a (s, l or 1, n), where row i of b uses row (i // div) % s of a; h0 (r, n), or (0, n).

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from resolvent.ops.linear_scan.numba_rows import advance, parts, retreat, retreat_streamed, retreat_summed
from resolvent.ops.linear_scan.rows import row_rule, sum_to
from resolvent.runtime.jit import PARTIAL, Array, address, jit
from resolvent.runtime.memory import fresh, fresh_like, keep_freed_memory, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for
from resolvent.runtime.vectors_numba import STREAMED, WIDTH, settle

Way = tuple[bool, bool]  # reverse in time, non-temporal stores of results
LARGE = 8 << 20  # bytes of a result from which it is streamed: two of them and three inputs fill a large cache


@jit
def _forward_task(a: Array, b: Array, h0: Array, h: Array, where: tuple[int, int, int, int], reverse: bool) -> None:
    row, source, lo, hi = where
    l, w, step = b.shape[1], hi - lo, 1 if a.shape[1] > 1 else 0
    t = l - 1 if reverse else 0
    for j in range(lo, hi):
        h[row, t, j] = b[row, t, j]
        if h0.shape[0] > 0:
            h[row, t, j] += a[source, t * step, j] * h0[row, j]
    whole = in_vectors(h, w)
    for k in range(1, l):
        before, t = t, l - 1 - k if reverse else k
        if whole:
            given = address(a, source, t * step, lo), address(b, row, t, lo), address(h, row, before, lo)
            advance(h, (*given, address(h, row, t, lo)), whole)
        for j in range(lo + whole, hi):
            h[row, t, j] = a[source, t * step, j] * h[row, before, j] + b[row, t, j]


@jit
def _backward_task(
    g: Array, a: Array, h: Array, h0: Array, out: tuple[Array, Array], where: tuple[int, int, int, int], way: Way
) -> None:
    """γ_t = g_t + carry, ∂a_t = γ_t ‾h_{t-1}, carry = ‾a_t γ_t, with a row of ∂a for every row of b.

    If a is constant in time, ∂a (r, 1, n) is the sum over time, by partial sums.
    """
    ga, gb = out
    row, source, lo, hi = where
    reverse, streamed = way
    l, w, varies = g.shape[1], hi - lo, 1 if a.shape[1] == g.shape[1] else 0
    carry, part = np.zeros((1, 1, w), g.dtype), np.zeros((1, 1, w), g.dtype)
    first = np.zeros((1, 1, w), g.dtype)
    for j in range(w):
        if h0.shape[0] > 0:
            first[0, 0, j] = h0[row, lo + j]
        if not varies:
            ga[row, 0, lo + j] = 0
    whole = in_vectors(h, w)
    for k in range(l - 1, -1, -1):
        t = l - 1 - k if reverse else k
        past = t + 1 if reverse else t - 1
        if whole:
            before = address(h, row, past, lo) if k > 0 else address(first, 0, 0, 0)
            up, by, down = address(g, row, t, lo), address(a, source, t * varies, lo), address(gb, row, t, lo)
            if streamed:
                retreat_streamed(h, (up, by, before, address(carry, 0, 0, 0), address(ga, row, t, lo), down), whole)
            elif varies:
                retreat(h, (up, by, before, address(carry, 0, 0, 0), address(ga, row, t, lo), down), whole)
            else:
                retreat_summed(h, (up, by, before, address(carry, 0, 0, 0), address(part, 0, 0, 0), down), whole)
        for j in range(whole, w):
            gamma = g[row, t, lo + j] + carry[0, 0, j]
            gb[row, t, lo + j] = gamma
            found = gamma * np.conj(h[row, past, lo + j] if k > 0 else first[0, 0, j])
            if varies:
                ga[row, t, lo + j] = found
            else:
                part[0, 0, j] += found
            carry[0, 0, j] = np.conj(a[source, t * varies, lo + j]) * gamma
        if not varies and k % PARTIAL == 0:
            for j in range(w):
                ga[row, 0, lo + j] += part[0, 0, j]
                part[0, 0, j] = 0


@jit
def in_vectors(x: Array, w: int) -> int:
    """The number of elements of a row of w that fill vectors."""
    own = WIDTH // parts(x)
    return w // own * own


@jit
def _where(task: int, n: int, width: int, div: int, sources: int) -> tuple[int, int, int, int]:
    """(row of b, row of a, first state, end of the states) of a task."""
    blocks = (n + width - 1) // width
    row, lo = task // blocks, (task % blocks) * width
    return row, (row // div) % sources, lo, min(lo + width, n)


# -- as kernels of a team: the table has sizes, addresses and settings ----------------------------------------------


def _forward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 13)
        first, end = share(w)
        reverse, given, width, div, s, la, r, l, n, at_a, at_b, at_h0, at_h = w[HEAD:]
        a = carray(pointer(at_a, dtype), (s, la, n))
        b = carray(pointer(at_b, dtype), (r, l, n))
        h0 = carray(pointer(at_h0, dtype), (r * given, n))
        h = carray(pointer(at_h, dtype), (r, l, n))
        for i in range(first, end):
            _forward_task(a, b, h0, h, _where(i, n, width, div, s), reverse != 0)

    return kernel(body)


def _backward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 16)
        first, end = share(w)
        streamed, reverse, given, width, div, s, la, r, l, n, at_g, at_a, at_h, at_h0, at_ga, at_gb = w[HEAD:]
        g = carray(pointer(at_g, dtype), (r, l, n))
        a = carray(pointer(at_a, dtype), (s, la, n))
        h = carray(pointer(at_h, dtype), (r, l, n))
        h0 = carray(pointer(at_h0, dtype), (r * given, n))
        out = carray(pointer(at_ga, dtype), (r, la, n)), carray(pointer(at_gb, dtype), (r, l, n))
        for i in range(first, end):
            where = _where(i, n, width, div, s)
            _backward_task(g, a, h, h0, out, where, (reverse != 0, streamed != 0))
        settle()

    return kernel(body)


@cache
def _compile(make: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    keep_freed_memory()
    return compile_for(make, dtype)


# -- interface to torch ------------------------------------------------------------------------------------------------


def numba_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t; a has the rank of b (..., l, n) and broadcasts to it, h0 is (..., n)."""
    threads = threads_for(b.numel())
    layout = _layout(a.shape, b.shape, threads)
    a, b, start = _rows(a, layout), plain(b), b if h0 is None else plain(h0)
    h = fresh_like(b)
    at = a.data_ptr(), b.data_ptr(), start.data_ptr(), h.data_ptr()
    code, given = _compile(_forward_kernel, b.dtype), h0 is not None
    run(code, (reverse, given, *layout.sizes, *at), layout.tasks, threads)
    return h


def numba_backward(g: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """(∂a, ∂b) in one pass over g, a and h."""
    threads, wanted = threads_for(h.numel()), a.shape
    layout = _layout(wanted, h.shape, threads)
    a, h, start = _rows(a, layout), plain(h), h if h0 is None else plain(h0)
    g, gb = plain(g), fresh_like(h)
    steps = wanted[-2]
    ga = fresh_like(h) if steps == h.shape[-2] else fresh((*h.shape[:-2], steps, h.shape[-1]), h)
    at = g.data_ptr(), a.data_ptr(), h.data_ptr(), start.data_ptr(), ga.data_ptr(), gb.data_ptr()
    code, given = _compile(_backward_kernel, h.dtype), h0 is not None
    run(code, (_streams(ga, gb), reverse, given, *layout.sizes, *at), layout.tasks, threads)
    return sum_to(ga, wanted), gb  # over the rows that share a


def _streams(ga: Tensor, gb: Tensor) -> bool:
    """Whether the two gradients exceed the cache, and all their rows allow non-temporal stores."""
    size = gb.numel() * gb.element_size()
    row = gb.shape[-1] * gb.element_size()
    aligned = all(number % STREAMED == 0 for number in (row, ga.data_ptr(), gb.data_ptr()))
    return ga.shape == gb.shape and size >= LARGE and aligned


class _Layout(NamedTuple):
    """How a maps to b's rows. sizes: states in a task, `div`, rows and steps of a, rows, steps and states of b."""

    source: torch.Size | None  # the shape to which a must be expanded, if its broadcast axes are between others
    tasks: int
    sizes: tuple[int, ...]


@lru_cache(1024)  # this arithmetic takes as long as a thousand updates
def _layout(a: torch.Size, b: torch.Size, threads: int) -> _Layout:
    l, n = b[-2:]
    rows = b.numel() // (l * n)
    source, div = row_rule(a, b)
    tasks, width = _plan(rows, n, threads)
    sizes = width, div, source.numel() // (source[-2] * n), source[-2], rows, l, n
    return _Layout(None if source == a else source, tasks, sizes)


def _rows(a: Tensor, layout: _Layout) -> Tensor:
    return plain(a if layout.source is None else a.expand(layout.source))


def _plan(rows: int, n: int, threads: int) -> tuple[int, int]:
    """(tasks, states in a block).

    Whole rows are processed in memory order, several times as fast as blocks of them; blocks are for too few rows
    for the threads, and for too many states for the cache.
    """
    blocks = max(min(-(-threads // rows), n // 64), -(-n // 4096), 1)
    width = -(-n // (blocks * WIDTH)) * WIDTH  # otherwise results would depend on block boundaries
    return rows * -(-n // width), width
