"""One time step of the linear scan and of its adjoint for a row of states, as vector instructions; see `rows_numba`.

Complex numbers are pairs of reals. With swap(y) the pairs of y swapped, and even(x) and odd(x) the real
and the imaginary parts of x, each repeated,

    x y = even(x) y + (-1, 1) odd(x) swap(y),    conj(x) y = even(x) y - (-1, 1) odd(x) swap(y)

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from resolvent.runtime.vectors_numba import WIDTH, load, order, plus_product, put, repeat

_SWAP, _EVEN, _ODD = ([(k & ~1) + part if part < 2 else k ^ 1 for k in range(WIDTH)] for part in (2, 0, 1))


def _row(addresses: int, update: Callable[..., list[Any]]) -> Any:
    """row(like, addresses, count) in compiled code: `update` for each vector of `count` numbers of `like`'s dtype.

    `count` is a positive multiple of WIDTH.
    """

    def typed(context: Any, like: Any, where: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            like, where, count = args
            vector = ir.VectorType(like.type, WIDTH)
            at = [builder.inttoptr(builder.extract_value(where, k), vector.as_pointer()) for k in range(addresses)]
            repeat(builder, builder.sdiv(count, count.type(WIDTH)), [], lambda i: update(builder, i, *at))
            return context.get_dummy_value()

        return types.void(like, types.UniTuple(types.int64, addresses), types.int64), generate

    return intrinsic(typed)


Product = Callable[[Any, Any, Any, Any], Any]  # (builder, x, y, z) -> x + y z


def _plus_pairs(sign: float) -> Product:
    """x + y z of pairs, with the conjugate of y if sign is -1."""

    def product(builder: Any, x: Any, y: Any, z: Any) -> Any:
        even, odd = (builder.shuffle_vector(y, y, order(places)) for places in (_EVEN, _ODD))
        signs = ir.Constant(y.type, [-sign, sign] * (WIDTH // 2))
        turned = builder.fmul(signs, builder.shuffle_vector(z, z, order(_SWAP)), flags=("contract",))
        return plus_product(builder, plus_product(builder, x, even, z), odd, turned)

    return product


def _step(product: Product) -> Any:
    """h = b + a before."""

    def update(builder: Any, i: Any, a: Any, b: Any, before: Any, h: Any) -> list[Any]:
        value = product(builder, load(builder, b, i), load(builder, a, i), load(builder, before, i))
        builder.store(value, builder.gep(h, [i]), align=4)
        return []

    return _row(4, update)


def _adjoint(product: Product, summed: bool = False, streamed: bool = False) -> Any:
    """gb = gamma = g + carry; ga = conj(before) gamma, or that added to ga; carry = conj(a) gamma."""

    def update(builder: Any, i: Any, g: Any, a: Any, before: Any, carry: Any, ga: Any, gb: Any) -> list[Any]:
        gamma = builder.fadd(load(builder, g, i), load(builder, carry, i), flags=("contract",))
        zero = ir.Constant(gamma.type, [0.0] * WIDTH)
        found = product(builder, load(builder, ga, i) if summed else zero, load(builder, before, i), gamma)
        after = product(builder, zero, load(builder, a, i), gamma)
        builder.store(after, builder.gep(carry, [i]), align=4)
        for value, place in ((found, ga), (gamma, gb)):
            put(builder, value, builder.gep(place, [i]), streamed)
        return []

    return _row(6, update)


# -- for each dtype -------------------------------------------------------------------------------------------------


def parts(x: NDArray[Any]) -> int:
    """Reals per number of x; a constant in compiled code."""
    return 2 if np.iscomplexobj(x) else 1


def advance(h: NDArray[Any], at: tuple[int, ...], count: int) -> None:
    """h = b + a before for `count` numbers of the kind of h at the addresses of (a, b, before, h).

    This and the next three exist in compiled code only; `count` is at least one vector of reals.
    """


def retreat(h: NDArray[Any], at: tuple[int, ...], count: int) -> None:
    """γ = g + carry, gb = γ, ga = γ ‾before, carry = ‾a γ at (g, a, before, carry, ga, gb)."""


def retreat_streamed(h: NDArray[Any], at: tuple[int, ...], count: int) -> None:
    """`retreat` with non-temporal stores: ga and gb are aligned to STREAMED bytes, and `settle` ends the pass."""


def retreat_summed(h: NDArray[Any], at: tuple[int, ...], count: int) -> None:
    """The same with γ ‾before added to ga."""


def _by_kind(stub: Callable[..., None], reals: Any, pairs: Any) -> None:
    def choose(h: Any, at: Any, count: Any) -> Any:
        if isinstance(h.dtype, types.Complex):
            return lambda h, at, count: pairs(h[0, 0, 0].real, at, 2 * count)
        return lambda h, at, count: reals(h[0, 0, 0], at, count)

    overload(stub, strict=False)(choose)  # the annotations differ, the arguments do not


_conjugate = _plus_pairs(-1.0)
_by_kind(advance, _step(plus_product), _step(_plus_pairs(1.0)))
_by_kind(retreat, _adjoint(plus_product), _adjoint(_conjugate))
_by_kind(retreat_streamed, _adjoint(plus_product, streamed=True), _adjoint(_conjugate, streamed=True))
_by_kind(retreat_summed, _adjoint(plus_product, summed=True), _adjoint(_conjugate, summed=True))


@overload(parts, strict=False)
def _choose_parts(x: Any) -> Any:
    parts = 2 if isinstance(x.dtype, types.Complex) else 1
    return lambda x: parts
