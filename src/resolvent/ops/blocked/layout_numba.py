"""`layout` on the CPU, compiled by numba: tiles of 8 x 8 numbers, transposed in registers.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

from resolvent.runtime.jit import Array, address, jit
from resolvent.runtime.memory import fresh, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share
from resolvent.runtime.threads import threads_for
from resolvent.runtime.vectors_numba import WIDTH, order

STRIP = 64  # channels at a time: no more pages than the processor keeps addresses of


def _tile(context: Any, like: Any, source: Any, step: Any, target: Any, stride: Any) -> Any:
    """tile(like, source, step, target, stride): WIDTH rows, `step` bytes apart, as columns of rows `stride` apart."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        like, source, step, target, stride = args
        kind = ir.VectorType(like.type, WIDTH).as_pointer()

        def at(start: Any, by: Any, k: int) -> Any:
            return builder.inttoptr(builder.add(start, builder.mul(by, by.type(k))), kind)

        rows = [builder.load(at(source, step, k), align=4) for k in range(WIDTH)]
        bit = 1
        while bit < WIDTH:  # swap what differs in this bit of row and column
            for i in (k for k in range(WIDTH) if not k & bit):
                x, y = rows[i], rows[i | bit]
                low = [k - bit + WIDTH if k & bit else k for k in range(WIDTH)]
                high = [k + WIDTH if k & bit else k + bit for k in range(WIDTH)]
                rows[i], rows[i | bit] = (builder.shuffle_vector(x, y, order(places)) for places in (low, high))
            bit *= 2
        for k, row in enumerate(rows):
            builder.store(row, at(target, stride, k), align=4)
        return context.get_dummy_value()

    return types.void(like, *(types.int64,) * 4), generate


tile: Any = intrinsic(_tile)


@jit
def _block(x: Array, out: Array, i: int, lo: int, hi: int, last: bool) -> None:
    """Channels lo to hi of row i: from x (r, t, d) to out (d, r, t), or the other way round where `last`."""
    t = x.shape[2] if last else x.shape[1]
    size = x.itemsize
    far, near = (x if last else out).shape[1] * t * size, (out if last else x).shape[2] * size
    k = 0
    while k + WIDTH <= t:
        c = lo
        while c + WIDTH <= hi:
            if last:
                tile(x[0, 0, 0], address(x, c, i, k), far, address(out, i, k, c), near)
            else:
                tile(x[0, 0, 0], address(x, i, k, c), near, address(out, c, i, k), far)
            c += WIDTH
        _rest(x, out, i, (k, k + WIDTH), (c, hi), last)
        k += WIDTH
    _rest(x, out, i, (k, t), (lo, hi), last)


@jit
def _rest(x: Array, out: Array, i: int, steps: tuple[int, int], channels: tuple[int, int], last: bool) -> None:
    """What fills no tile."""
    for c in range(channels[0], channels[1]):
        for k in range(steps[0], steps[1]):
            if last:
                out[i, k, c] = x[c, i, k]
            else:
                out[c, i, k] = x[i, k, c]


def _kernel(dtype: Any) -> Any:
    """Tasks are rows."""

    def body(p: Any) -> None:
        w = carray(p, HEAD + 6)
        first, end = share(w)
        r, t, d, last, at_x, at_out = w[HEAD:]
        for lo in range(0, d, STRIP):
            for i in range(first, end):
                if last:
                    x, out = carray(pointer(at_x, dtype), (d, r, t)), carray(pointer(at_out, dtype), (r, t, d))
                    _block(x, out, i, lo, min(lo + STRIP, d), True)
                else:
                    x, out = carray(pointer(at_x, dtype), (r, t, d)), carray(pointer(at_out, dtype), (d, r, t))
                    _block(x, out, i, lo, min(lo + STRIP, d), False)

    return kernel(body)


def channels_first(x: Tensor) -> Tensor:
    r, t, d = x.shape
    return _copy(x, (d, r, t), (r, t, d, 0))


def channels_last(x: Tensor) -> Tensor:
    d, r, t = x.shape
    return _copy(x, (r, t, d), (r, t, d, 1))


def _copy(x: Tensor, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    x = plain(x)
    out = fresh(shape, x)
    run(compile_for(_kernel, x.dtype), (*sizes, x.data_ptr(), out.data_ptr()), sizes[0], threads_for(x.numel()))
    return out
