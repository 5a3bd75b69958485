"""Compiled functions called by address.

If the parts of a long kernel are inlined into each other, the compiler recompiles them at every level, for minutes.
Here each is a C function of integers (addresses and sizes), compiled once, and kernels call the addresses they get.

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
    options: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}  # no division-by-zero checks
    try:
        compiled: Any = cfunc(kind, cache=True, **options)(body)
    except RuntimeError:  # no writable cache folder
        compiled = cfunc(kind, **options)(body)
    _keep.append(compiled)  # keeps the code alive
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
