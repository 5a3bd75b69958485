"""The gated scan's CPU kernels called from torch: memory in and out, and a thread team that shares the tasks.

The work is split by shapes alone and tasks never add to the same number, so results do not depend on the number of
threads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import carray, njit, types
from torch import Tensor

from resolvent.ops.gated_scan import numba_kernels as kernels
from resolvent.ops.gated_scan.inputs import Inputs
from resolvent.runtime.memory import fresh, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for

_COST = 8  # cost of a step relative to a linear scan: three exponentials, a root
_LANES = 256  # channels per task: long inner loops with scratch in the cache


def forward(x: Inputs) -> Tensor:
    """h (b, l, d); p, q and x have one dtype, float32 or float64, and at least one number; rate and h0 none wider."""
    h = fresh(tuple(x.x.shape), x.x)
    _run(_forward_kernel, x, [h])
    return h


def backward(x: Inputs, h: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of p, q, x, rate and h0 from that of h."""
    b, l, d = x.x.shape
    gp, gq, gx = (fresh((b, l, d), x.x) for _ in range(3))
    parts, gh0 = fresh((b, d), x.x), fresh((b, d), x.x)
    _run(_backward_kernel, x, [plain(h), plain(g), gp, gq, gx, parts, gh0])
    first, *others = parts.unbind(0)
    return gp, gq, gx, sum(others, first), None if x.h0 is None else gh0


def _run(make: Callable[[Any], Any], x: Inputs, rest: list[Tensor]) -> None:
    b, l, d = x.x.shape
    rate, h0 = (x.x if t is None else t.to(x.x.dtype) for t in (x.rate, x.h0))  # may be narrower
    start = x.x if x.start is None else x.start
    held = [*(plain(t) for t in (x.p, x.q, x.x, rate, h0, start)), *rest]  # kept alive until the kernel is done
    marks = 0 if x.start is None else 1 if x.start.dim() == 1 else l
    table = [min(_LANES, -(-d // 8) * 8), b, l, d, x.reverse, x.h0 is not None, marks, *(t.data_ptr() for t in held)]
    run(compile_for(make, x.x.dtype), table, b * -(-d // _LANES), threads_for(_COST * b * l * d))


@njit
def _inputs(at: Any, sizes: Any, started: int, marks: int, dtype: Any) -> kernels.Arrays:
    """The first six addresses as arrays."""
    b, l, d = sizes
    return kernels.Arrays(
        carray(pointer(at[0], dtype), (b, l, d)),
        carray(pointer(at[1], dtype), (b, l, d)),
        carray(pointer(at[2], dtype), (b, l, d)),
        carray(pointer(at[3], dtype), (d,)),
        carray(pointer(at[4], dtype), (b * started, d)),
        carray(pointer(at[5], types.uint8), (b, marks)),
    )


@njit
def _open(table: Any, addresses: int, dtype: Any) -> Any:
    """A kernel's arguments: the table and the sizes in it, the addresses after them, and the inputs."""
    w = carray(table, HEAD + 7 + addresses)
    lanes, b, l, d, reverse, started, marks = w[HEAD : HEAD + 7]
    at = w[HEAD + 7 :]
    return w, lanes, (b, l, d), reverse != 0, at, _inputs(at, (b, l, d), started, marks, dtype)


def _forward_kernel(dtype: Any) -> Any:
    def body(table: Any) -> None:
        w, lanes, size, reverse, at, x = _open(table, 7, dtype)
        kernels.forward_tasks(share(w), lanes, x, carray(pointer(at[6], dtype), size), reverse)

    return kernel(body)


def _backward_kernel(dtype: Any) -> Any:
    def body(table: Any) -> None:
        w, lanes, size, reverse, at, x = _open(table, 13, dtype)
        h, g, small = carray(pointer(at[6], dtype), size), carray(pointer(at[7], dtype), size), (size[0], size[2])
        out = kernels.Gradients(
            carray(pointer(at[8], dtype), size),
            carray(pointer(at[9], dtype), size),
            carray(pointer(at[10], dtype), size),
            carray(pointer(at[11], dtype), small),
            carray(pointer(at[12], dtype), small),
        )
        kernels.backward_tasks(share(w), lanes, x, h, g, out, reverse)

    return kernel(body)
