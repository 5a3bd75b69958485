"""Rows of WIDTH samples in lanes, (d, WIDTH) per time step: sums, products, and conversion to and from lanes.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

from numba import carray, njit

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.jit import Array
from resolvent.runtime.team import pointer
from resolvent.runtime.vectors_numba import WIDTH

ADD, COPY, TIMES, SCALE, PLUS, CLEAR = range(6)


@njit(nogil=True, fastmath={"contract"})
def _combine(code: int, z: Array, h: Array, more: Array) -> None:
    n = z.shape[0]
    if code == ADD:
        for j in range(n):
            z[j] += h[j]
    elif code == COPY:
        for j in range(n):
            z[j] = h[j]
    elif code == TIMES:
        for j in range(n):
            z[j] *= h[j]
    elif code == PLUS:
        for j in range(n):
            z[j] += h[j] * more[j]
    elif code == CLEAR:
        for j in range(n):
            z[j] = 0
    else:
        for j in range(n):
            more[j] *= z[j]
            z[j] *= h[j]


def combine(dtype: Any) -> int:
    """ADD z + h, COPY h, TIMES z h, PLUS z + h more, CLEAR 0 to z; SCALE: z h to z and z more to `more`. `step` rows
    is the row stride of h: 0 for one row used with all of z."""
    size = dtype.bitwidth // 8

    def body(code: int, z: int, h: int, step: int, more: int, row: int, count: int, n: int) -> None:
        for t in range(count):
            at = t * row * size
            given = carray(pointer(h + at * step, dtype), (n,))
            _combine(code, carray(pointer(z + at, dtype), (n,)), given, carray(pointer(more + at, dtype), (n,)))

    return leaf(body)


def gather_rows(dtype: Any) -> int:
    """y[t, q, s] = x[first + s, t, q] of x (b, l, c), 0 beyond the last sample."""

    def body(at_x: int, b: int, l: int, c: int, first: int, at_y: int, row: int) -> None:
        x, y = carray(pointer(at_x, dtype), (b, l, c)), carray(pointer(at_y, dtype), (l, row))
        for t in range(l):
            for q in range(c):
                for s in range(WIDTH):
                    y[t, q * WIDTH + s] = x[first + s, t, q] if first + s < b else dtype(0)

    return leaf(body)


def scatter_rows(dtype: Any) -> int:
    """The inverse, for the samples present; `count` steps from `begin` on."""

    def body(at_x: int, b: int, l: int, c: int, first: int, at_y: int, row: int, begin: int, count: int) -> None:
        x, y = carray(pointer(at_x, dtype), (b, l, c)), carray(pointer(at_y, dtype), (count, row))
        for s in range(min(WIDTH, b - first)):
            for t in range(count):
                for q in range(c):
                    x[first + s, begin + t, q] = y[t, q * WIDTH + s]

    return leaf(body)


def pool_rows(dtype: Any) -> int:
    """out[first + s] (b, d) = the mean of h over the steps from `begin` to l; `total` is a scratch row."""

    def body(at_h: int, begin: int, l: int, at_out: int, b: int, first: int, total: int, row: int, d: int) -> None:
        h, out = carray(pointer(at_h, dtype), (l, row)), carray(pointer(at_out, dtype), (b, d))
        sums = carray(pointer(total, dtype), (d * WIDTH,))
        _combine(COPY, sums, h[begin, : d * WIDTH], sums)
        for t in range(begin + 1, l):
            _combine(ADD, sums, h[t, : d * WIDTH], sums)
        for s in range(min(WIDTH, b - first)):
            for c in range(d):
                out[first + s, c] = sums[c * WIDTH + s] / dtype(l - begin)

    return leaf(body)


def unpool_rows(dtype: Any) -> int:
    """The gradient g of h from that of out, `given` (b, d): zero before `begin`."""

    def body(at_g: int, begin: int, l: int, at_given: int, b: int, first: int, row: int, d: int) -> None:
        g, given = carray(pointer(at_g, dtype), (l, row)), carray(pointer(at_given, dtype), (b, d))
        last = g[l - 1, : d * WIDTH]
        for c in range(d):
            for s in range(WIDTH):
                last[c * WIDTH + s] = given[first + s, c] / dtype(l - begin) if first + s < b else dtype(0)
        for t in range(l - 1):
            own = g[t, : d * WIDTH]
            if t < begin:
                for j in range(d * WIDTH):
                    own[j] = 0
            else:
                _combine(COPY, own, last, last)

    return leaf(body)
