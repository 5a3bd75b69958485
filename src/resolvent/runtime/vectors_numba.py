"""Rows of a few states, updated and summed in one pass, as vector instructions.

A compiler looks for overlaps between the arrays of such a loop each time that it enters one, and a sum in the same loop
makes it give up on vectors: both cost more than the row itself. Written down as vectors, a row takes some nanoseconds.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 8  # numbers handled at once: one register of float32, two of float64 where registers have 256 bits
STREAMED = 32  # bytes of which the address of a streamed vector has to be a multiple
LOOSE = ("contract", "reassoc")  # fused multiply-adds, and a sum in another, fixed, order
_INDEX = ir.IntType(32)


def _pair_row(context: Any, u: Any, re: Any, im: Any, row: Any, h: Any, new: Any, count: Any) -> Any:
    """pair_row(u, ..., count): h' = lam h + u of complex states, written to `new`; returns the sum of row h'.

    States are stored as real and imaginary part in turn, an order in which compilers shuffle more than they multiply.
    With lam as the rows re = (re, re, ...) and im = (-im, im, ...), only the state's neighbours have to be swapped:

        h' = (re, re) * (x, y) + (-im, im) * (y, x) + (u, 0)
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        u, *addresses, count = args
        vector = ir.VectorType(u.type, WIDTH)
        re, im, row, h, new = (builder.inttoptr(address, vector.as_pointer()) for address in addresses)
        driven = spread(builder, u, [0, 1] * (WIDTH // 2))

        def body(i: Any) -> Any:
            state = load(builder, h, i)
            swapped = builder.shuffle_vector(state, state, order([k ^ 1 for k in range(WIDTH)]))
            value = plus_product(builder, driven, load(builder, im, i), swapped)
            value = plus_product(builder, value, load(builder, re, i), state)
            builder.store(value, builder.gep(new, [i]), align=4)
            return value, load(builder, row, i)

        return _sum_of_products(builder, vector, count, body)

    return u(u, *(types.int64,) * 6), generate


def _driven_row(context: Any, drive: Any, B: Any, C: Any, h: Any, count: Any) -> Any:
    """driven_row(drive, B, C, h, count): h' = h + drive B in place; returns the sum of C h'."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        drive, *addresses, count = args
        vector = ir.VectorType(drive.type, WIDTH)
        B, C, h = (builder.inttoptr(address, vector.as_pointer()) for address in addresses)
        drives = spread(builder, drive, [0] * WIDTH)

        def body(i: Any) -> Any:
            value = plus_product(builder, load(builder, h, i), drives, load(builder, B, i))
            builder.store(value, builder.gep(h, [i]), align=4)
            return value, load(builder, C, i)

        return _sum_of_products(builder, vector, count, body)

    return drive(drive, *(types.int64,) * 4), generate


pair_row: Any = intrinsic(_pair_row)  # in compiled code; the arrays are given by their addresses,
driven_row: Any = intrinsic(_driven_row)  # `count` is their length, a positive multiple of WIDTH


# -- pieces ------------------------------------------------------------------------------------------------------------


def repeat(builder: Any, count: Any, values: list[Any], body: Callable[..., list[Any]]) -> list[Any]:
    """values = body(i, *values) for every i below `count`, which is positive: the last ones."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    i, held = builder.phi(count.type), [builder.phi(value.type) for value in values]
    found, then = body(i, *held), builder.add(i, count.type(1))
    for variable, first, again in ((i, count.type(0), then), *zip(held, values, found, strict=True)):
        variable.add_incoming(first, before)
        variable.add_incoming(again, loop)
    builder.cbranch(builder.icmp_signed("<", then, count), loop, after)
    builder.position_at_end(after)
    return found


def _sum_of_products(builder: Any, vector: Any, count: Any, body: Callable[[Any], tuple[Any, Any]]) -> Any:
    """The sum over all vectors i of the product of the two that body(i) returns, as one number."""
    zero, vectors = ir.Constant(vector, [0.0] * WIDTH), builder.sdiv(count, count.type(WIDTH))
    (total,) = repeat(builder, vectors, [zero], lambda i, x: [plus_product(builder, x, *body(i))])
    return across(builder, total)


def across(builder: Any, x: Any) -> Any:
    """The sum of a vector's numbers, by halves."""
    width = WIDTH
    while width > 1:
        width //= 2
        turned = builder.shuffle_vector(x, x, order([(k + width) % WIDTH for k in range(WIDTH)]))
        x = builder.fadd(x, turned, flags=LOOSE)
    return builder.extract_element(x, _INDEX(0))


def spread(builder: Any, number: Any, places: list[int]) -> Any:
    """The vector with `number` where places is 0 and zero where it is 1."""
    zero = ir.Constant(ir.VectorType(number.type, WIDTH), [0.0] * WIDTH)
    return builder.shuffle_vector(builder.insert_element(zero, number, _INDEX(0)), zero, order(places))


def plus_product(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(x, builder.fmul(y, z, flags=LOOSE), flags=LOOSE)


def load(builder: Any, pointer: Any, i: Any) -> Any:
    return builder.load(builder.gep(pointer, [i]), align=4)  # an array may start anywhere


def put(builder: Any, value: Any, place: Any, streamed: bool) -> None:
    """Store a vector; streamed, it goes past the caches, which then need not read what it overwrites."""
    stored = builder.store(value, place, align=STREAMED if streamed else 4)
    if streamed:
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INDEX(1)]))


def _settle(context: Any) -> Any:
    """settle(): all that was streamed is in its place before whatever comes next, for every thread."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


settle: Any = intrinsic(_settle)


def order(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, len(places)), [_INDEX(k) for k in places])
