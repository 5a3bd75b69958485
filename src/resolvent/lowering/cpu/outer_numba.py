"""Gradients of the matrices of `tile_numba`: products of rows of samples in lanes, summed over time.

    map over channels    ∂A[p, i] = sum_{t, s} x[t, p, s] ∂y[t, i, s]
    convolution          ∂k[c, j] = sum_{t, s} ∂y[t, c, s] x[t - j, c, s]

A tile of R by V sums stays in registers, one lane per sample; at the end the lanes are summed.
Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.team import pointer
from resolvent.runtime.vectors_numba import WIDTH, across, plus_product, repeat

LAGS = 8  # per tile of a convolution's gradient
_ROWS, _COLUMNS = 3, 4  # tile of a map's gradient


def _outer(R: int, V: int) -> Any:
    """outer(like, a, b, out, steps, count): out[r, v] += sum over t < count and lanes of a[t, r] b[t, v].

    a, b and out are (address, bytes from r to r + 1), out[r, v] and out[r, v + 1] are adjacent, and steps are the
    bytes from t to t + 1 of a and of b. count is at least 1.
    """

    def typed(context: Any, like: Any, a: Any, b: Any, out: Any, steps: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            like, *places, count = args
            pairs = [[builder.extract_value(place, k) for k in range(2)] for place in places]
            _sums(builder, ir.VectorType(like.type, WIDTH), (*pairs, count), (R, V))
            return context.get_dummy_value()

        two = types.UniTuple(types.int64, 2)
        return types.void(like, two, two, two, two, types.int64), generate

    return intrinsic(typed)


def _sums(builder: Any, vector: Any, given: tuple[Any, ...], size: tuple[int, int]) -> None:
    (a, gap_a), (b, gap_b), (out, row), (step_a, step_b), count = given
    (R, V), number = size, count.type

    def load(base: Any, gap: Any, i: int) -> Any:
        at = builder.add(base, builder.mul(gap, number(i)))
        return builder.load(builder.inttoptr(at, vector.as_pointer()), align=4)

    def body(_: Any, at_a: Any, at_b: Any, *sums: Any) -> list[Any]:
        left, found = [load(at_a, gap_a, r) for r in range(R)], list(sums)
        for v in range(V):  # one vector at a time next to those of a: there are sixteen registers
            right = load(at_b, gap_b, v)
            for r in range(R):
                found[r * V + v] = plus_product(builder, sums[r * V + v], left[r], right)
        return [builder.add(at_a, step_a), builder.add(at_b, step_b), *found]

    zero = ir.Constant(vector, [0.0] * WIDTH)
    _, _, *found = repeat(builder, count, [a, b, *[zero] * (R * V)], body)
    for r in range(R):
        place = builder.inttoptr(builder.add(out, builder.mul(row, number(r))), vector.element.as_pointer())
        _add_lanes(builder, found[r * V : (r + 1) * V], place)


def _add_lanes(builder: Any, sums: list[Any], place: Any) -> None:
    """Sum the lanes of each sum, and add that to the numbers at `place`."""
    for v, total in enumerate(sums):
        at = builder.gep(place, [ir.IntType(32)(v)])
        builder.store(builder.fadd(builder.load(at), across(builder, total)), at)


_wide, _low, _tall, _one = _outer(_ROWS, _COLUMNS), _outer(1, _COLUMNS), _outer(_ROWS, 1), _outer(1, 1)
_lags = _outer(1, LAGS)


def outer(dtype: Any) -> int:
    """out[i, j] += sum_{t, s} a[t, i, s] b[t, j, s] for `rows` of a and `columns` of b; row_a and row_b are the strides
    from t to t + 1."""
    size = dtype.bitwidth // 8

    def body(out: int, a: int, rows: int, row_a: int, b: int, columns: int, row_b: int, count: int) -> None:
        like, vector, steps = dtype(0), WIDTH * size, (row_a * size, row_b * size)
        i = 0
        while i < rows:
            tall = rows - i >= _ROWS
            left = a + i * vector, vector
            j = 0
            while j < columns:
                right, place = (b + j * vector, vector), (out + (i * columns + j) * size, columns * size)
                if columns - j >= _COLUMNS:
                    if tall:
                        _wide(like, left, right, place, steps, count)
                    else:
                        _low(like, left, right, place, steps, count)
                    j += _COLUMNS
                else:
                    if tall:
                        _tall(like, left, right, place, steps, count)
                    else:
                        _one(like, left, right, place, steps, count)
                    j += 1
            i += _ROWS if tall else 1

    return leaf(body)


def correlate(dtype: Any) -> int:
    """out[c, pad + j] += sum_{t >= j, s} g[t, c, s] x[t - j, c, s]; out is (d, pad + l)."""
    size = dtype.bitwidth // 8

    def body(out: int, pad: int, g: int, x: int, row: int, l: int, d: int) -> None:
        like, gap = dtype(0), row * size
        for c in range(d):
            own, here, there = out + (c * (pad + l) + pad) * size, g + c * WIDTH * size, x + c * WIDTH * size
            j = 0
            while j < l:
                if l - j >= LAGS:  # steps where all of these lags have an x, then the earlier ones
                    first = j + LAGS - 1
                    right = there + (LAGS - 1) * gap, -gap
                    _lags(like, (here + first * gap, 0), right, (own + j * size, 0), (gap, gap), l - first)
                    for r in range(LAGS - 1):
                        left, place = (here + (j + r) * gap, 0), (own + (j + r) * size, 0)
                        _one(like, left, (there, 0), place, (gap, gap), LAGS - 1 - r)
                    j += LAGS
                else:
                    _one(like, (here + j * gap, 0), (there, 0), (own + j * size, 0), (gap, gap), l - j)
                    j += 1

    return leaf(body)


def sum_rows(dtype: Any) -> int:
    """out[j] += sum over `count` rows of a[t, j] b[t, j], or without b (0) of a[t, j], for n numbers."""
    size = dtype.bitwidth // 8

    def body(out: int, a: int, b: int, row: int, count: int, n: int) -> None:
        total = carray(pointer(out, dtype), (n,))
        for t in range(count):
            x = carray(pointer(a + t * row * size, dtype), (n,))
            if b:
                y = carray(pointer(b + t * row * size, dtype), (n,))
                for j in range(n):
                    total[j] += x[j] * y[j]
            else:
                for j in range(n):
                    total[j] += x[j]

    return leaf(body)
