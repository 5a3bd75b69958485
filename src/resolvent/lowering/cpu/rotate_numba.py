"""Rows of complex states of WIDTH samples in lanes, each multiplied by lam and added to the next, vectorised.

A row is (2p, WIDTH): real and imaginary parts of p states interleaved. With lam in the same layout,

    h_t = v_t + lam h_{t-1}    or, back in time,    γ_t = g_t + ‾lam γ_{t+1}          ∂lam = sum_t γ_t ‾h_{t-1}

where h overwrites v: row t reads the new row t - 1, or t + 1. Imported by compiled backends only.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.vectors_numba import WIDTH, load, plus_product, repeat


def _pairs(combine: Any) -> Any:
    """pairs(like, (a, b, to), p): to[j] += combine(a[j], b[j]) for p complex rows, each two vectors (re, im)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        like, places, p = args
        vector = ir.VectorType(like.type, WIDTH)
        a, b, to = (builder.inttoptr(builder.extract_value(places, k), vector.as_pointer()) for k in range(3))

        def body(j: Any) -> list[Any]:
            re = builder.mul(j, j.type(2))
            im = builder.add(re, j.type(1))
            read = [(load(builder, array, re), load(builder, array, im)) for array in (a, b, to)]
            for value, place in zip(combine(builder, *read), (re, im), strict=True):
                builder.store(value, builder.gep(to, [place]), align=4)
            return []

        repeat(builder, p, [], body)
        return context.get_dummy_value()

    def typed(context: Any, like: Any, places: Any, p: Any) -> Any:
        return types.void(like, types.UniTuple(types.int64, 3), types.int64), generate

    return intrinsic(typed)


def _ahead(builder: Any, lam: Any, h: Any, v: Any) -> tuple[Any, Any]:
    """v + lam h."""
    re = plus_product(builder, v[0], lam[0], h[0])
    im = plus_product(builder, v[1], lam[0], h[1])
    return plus_product(builder, re, builder.fneg(lam[1]), h[1]), plus_product(builder, im, lam[1], h[0])


def _back(builder: Any, lam: Any, h: Any, v: Any) -> tuple[Any, Any]:
    """v + ‾lam h."""
    re = plus_product(builder, v[0], lam[0], h[0])
    im = plus_product(builder, v[1], lam[0], h[1])
    return plus_product(builder, re, lam[1], h[1]), plus_product(builder, im, builder.fneg(lam[1]), h[0])


_turn_ahead, _turn_back = _pairs(_ahead), _pairs(_back)


def rotate(dtype: Any) -> int:
    """`count` rows of v become h: the first from the row before it, or, with `back`, the last from the one after."""
    size = dtype.bitwidth // 8

    def body(lam: int, p: int, v: int, row: int, count: int, back: int) -> None:
        gap = row * size
        for t in range(count):
            if back:
                at = v + (count - 1 - t) * gap
                _turn_back(dtype(0), (lam, at + gap, at), p)
            else:
                at = v + t * gap
                _turn_ahead(dtype(0), (lam, at - gap, at), p)

    return leaf(body)


def slopes(dtype: Any) -> int:
    """out += ‾h γ over `count` rows: the gradient of lam, lane by lane, where h is the row before γ's."""
    size = dtype.bitwidth // 8

    def body(out: int, p: int, h: int, g: int, row: int, count: int) -> None:
        for t in range(count):
            _turn_back(dtype(0), (h + t * row * size, g + t * row * size, out), p)

    return leaf(body)
