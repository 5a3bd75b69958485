"""Products of small matrices with rows of samples in lanes, vectorised: the building blocks of `interpreter_numba`.

A row has for each channel the values of WIDTH samples, (d, WIDTH), and an array (l, stride) has one such row for each
time step. Both products of a state-space block are then sums of numbers times vectors,

    map over channels    y[t, i] = sum_p A[p, i] x[t, p]          convolution    y[t, c] = sum_s k[c, t - s] x[s, c]

and one piece of code makes a tile of R by V of their vectors, which stays in registers over the whole sum. Only the
causal half of the convolution is computed, without a matrix: the kernels k of all channels fit into the first-level
cache.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.vectors_numba import WIDTH, plus_product, repeat, spread

PAD = 12  # zeros before each kernel, and the most rows of a convolution tile
_ROWS, _VECTORS = 6, 2  # tile of a map: twelve sums, two vectors and a number fill sixteen registers


def _tile(R: int, V: int, onto: bool) -> Any:
    """tile(like, A, x, y, depth) in compiled code: y[r, v] = sum over p < depth of A[p, r] x[p, v], or that added to y.

    A is (address, bytes from p to p + 1), where A[p, r] and A[p, r + 1] are adjacent; x is (address, bytes from p to
    p + 1, from v to v + 1), and y (address, bytes from r to r + 1, from v to v + 1). depth is at least 1.
    """

    def typed(context: Any, like: Any, A: Any, x: Any, y: Any, depth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            like, *places, depth = args
            A, x, y = ([builder.extract_value(p, k) for k in range(len(t))] for p, t in zip(places, kinds, strict=True))
            _sums(builder, ir.VectorType(like.type, WIDTH), (A, x, y, depth), (R, V, onto))
            return context.get_dummy_value()

        two, three = (types.UniTuple(types.int64, n) for n in (2, 3))
        kinds = (two, three, three)
        return types.void(like, *kinds, types.int64), generate

    return intrinsic(typed)


def _sums(builder: Any, vector: Any, given: tuple[Any, ...], size: tuple[int, int, bool]) -> None:
    (A, step_A), (x, step_x, gap_x), (y, row_y, gap_y), depth = given
    R, V, onto = size
    number = depth.type

    def place(r: int, v: int) -> Any:
        by_row, by_gap = builder.mul(row_y, number(r)), builder.mul(gap_y, number(v))
        return builder.inttoptr(builder.add(y, builder.add(by_row, by_gap)), vector.as_pointer())

    places = [place(r, v) for r in range(R) for v in range(V)]
    zero = ir.Constant(vector, [0.0] * WIDTH)
    starts = [builder.load(p, align=4) if onto else zero for p in places]

    def body(_: Any, at_A: Any, at_x: Any, *sums: Any) -> list[Any]:
        offsets = [builder.add(at_x, builder.mul(gap_x, number(v))) for v in range(V)]
        vectors = [builder.load(builder.inttoptr(at, vector.as_pointer()), align=4) for at in offsets]
        scalars, found = builder.inttoptr(at_A, vector.element.as_pointer()), []
        for r in range(R):
            one = builder.load(builder.gep(scalars, [ir.IntType(32)(r)]))
            factor = spread(builder, one, [0] * WIDTH)
            found += [plus_product(builder, sums[r * V + v], factor, vectors[v]) for v in range(V)]
        return [builder.add(at_A, step_A), builder.add(at_x, step_x), *found]

    _, _, *found = repeat(builder, depth, [A, x, *starts], body)
    for value, at in zip(found, places, strict=True):
        builder.store(value, at, align=4)


def _by_rows(most: int, make: Callable[[int], Any]) -> Any:
    """run(R, ...) in compiled code: the piece made for R of `most`, four or one rows."""
    whole, four, one = (make(R) for R in (most, 4, 1))

    @njit(inline="always")
    def run(R: int, like: Any, factors: Any, source: Any, place: Any, depth: int) -> None:
        if most == R:
            whole(like, factors, source, place, depth)
        elif R == 4:
            four(like, factors, source, place, depth)
        else:
            one(like, factors, source, place, depth)

    return run


_map, _map_thin = _by_rows(_ROWS, lambda R: _tile(R, _VECTORS, False)), _by_rows(_ROWS, lambda R: _tile(R, 1, False))
_convolve, _convolve_onto = _by_rows(PAD, lambda R: _tile(R, 1, False)), _by_rows(PAD, lambda R: _tile(R, 1, True))


def map_rows(dtype: Any) -> int:
    """y[t, i] = sum_p A[p, i] x[t, p] for `count` time steps; A is (depth, rows), row_x and row_y are the strides from
    t to t + 1."""
    size = dtype.bitwidth // 8

    def body(A: int, depth: int, rows: int, x: int, row_x: int, y: int, row_y: int, count: int) -> None:
        like, vector, gap_x, gap_y = dtype(0), WIDTH * size, row_x * size, row_y * size
        for t in range(0, count, _VECTORS):
            whole, source = count - t >= _VECTORS, (x + t * gap_x, vector, gap_x)
            i = 0
            while i < rows:
                place, factors = (y + t * gap_y + i * vector, vector, gap_y), (A + i * size, rows * size)
                left = rows - i
                R = _ROWS if left >= _ROWS and left != 8 else (4 if left >= 4 else 1)  # 8 are two fours
                if whole:
                    _map(R, like, factors, source, place, depth)
                else:
                    _map_thin(R, like, factors, source, place, depth)
                i += R

    return leaf(body)


def convolve_rows(dtype: Any) -> int:
    """y[t, c] = sum_{s <= t} k_{c, t-s} x[s, c], or with `back` its adjoint, sum_{s >= t} k_{c, s-t} x[s, c]; added to
    y where back is 2.

    k (d, PAD + l) has PAD zeros before the kernel of each channel, or with `back` is that reversed.
    """
    size = dtype.bitwidth // 8

    def body(k: int, d: int, l: int, x: int, y: int, row: int, back: int) -> None:
        like, gap = dtype(0), row * size
        for c in range(d):
            t = 0
            while t < l:
                R = PAD if l - t >= PAD else (4 if l - t >= 4 else 1)
                first, depth = (t, l - t) if back else (0, t + R)
                factors = k + (c * (PAD + l) + (l - 1 if back else PAD + t)) * size, -size
                source, place = (x + first * gap + c * WIDTH * size, gap, 0), (y + t * gap + c * WIDTH * size, gap, 0)
                if back == 2:
                    _convolve_onto(R, like, factors, source, place, depth)
                else:
                    _convolve(R, like, factors, source, place, depth)
                t += R

    return leaf(body)
