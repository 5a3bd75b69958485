"""Compiled pieces that are called by their address.

A compiler that sees the pieces of a long walk inside of each other makes them all anew at every level, for minutes.
Here each is a C function of whole numbers (addresses and sizes), compiled once, and the walk calls what it is handed.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

_keep: list[Any] = []


def leaf(body: Callable[..., None]) -> int:
    """The address of `body`, compiled: a function of 64-bit numbers that returns nothing."""
    kind = types.void(*(types.int64,) * len(signature(body).parameters))
    options: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}  # divisors are not looked at
    try:
        compiled: Any = cfunc(kind, cache=True, **options)(body)
    except RuntimeError:  # no folder that a cache could be written to
        compiled = cfunc(kind, **options)(body)
    _keep.append(compiled)  # the code lives as long as this object
    return int(compiled.address)


def _call(context: Any, address: Any, args: Any) -> Any:
    """call(address, (number, ...)) in compiled code."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        where, numbers = given
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * len(args)).as_pointer()
        values = [builder.extract_value(numbers, i) for i in range(len(args))]
        builder.call(builder.inttoptr(where, function), values)
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, len(args))), generate


call: Any = intrinsic(_call)
