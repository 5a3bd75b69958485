"""The fused CPU kernels called from torch: memory in and out, and a thread team that shares the tasks.

The work is split by shapes alone and tasks never add to the same number, so results do not depend on the number of
threads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import carray, njit, types
from torch import Tensor

from resolvent.ops.selective_scan import numba_kernels as kernels
from resolvent.ops.selective_scan.inputs import Inputs, chunks
from resolvent.runtime.memory import fresh, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for

_COST = 4  # cost of a state update relative to a linear scan: discretisation, an exponential, two sums


def forward(x: Inputs, reverse: bool, save: bool, reset: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """y (b, l, d), the last state (b, d, n) and the states before each chunk (b, chunks, n, d), none unless `save`."""
    b, l, d = x.u.shape
    n = x.A.shape[1]
    y, h = fresh((b, l, d), x.u), fresh((b, d, n), x.u)
    saved = fresh((b, chunks(l) if save else 0, n, d), x.u)
    _run(_forward_kernel, x, reset, [saved.shape[1]], [y, h, saved], reverse)
    return y, h, saved


def backward(
    x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool, reset: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Gradients of every input from those of y and of the last state."""
    b, l, d = x.u.shape
    n, blocks = x.A.shape[1], -(-d // _lanes(b, d))
    wide, parts = (b, l, d), (blocks, b, l, n)
    shapes = [wide, wide, (b, n, d), parts, parts, (b, d), wide if x.z is not None else (0,), (b, d, n)]
    out = [fresh(shape, x.u) for shape in shapes]
    up = [plain(t).detach() for t in (saved, gy, gh)]
    _run(_backward_kernel, x, reset, [saved.shape[1], blocks], [*up, *out], reverse)
    gu, gdt, gA, gB, gC, gD, gz, gh0 = out
    return (
        gu,
        gdt,
        _total(gA).mT.contiguous(),
        _total(gB),
        _total(gC),
        None if x.D is None else _total(gD),
        None if x.z is None else gz,
        None if x.h0 is None else gh0,
    )


def _lanes(b: int, d: int) -> int:
    """The width of a block of channels: wide for long inner loops, narrower if there would be few tasks."""
    lanes = 64
    while lanes > 16 and (lanes >= 2 * d or b * -(-d // lanes) < 4):
        lanes //= 2
    return lanes


def _plain(x: Inputs, reset: Tensor | None) -> list[Tensor]:
    """The inputs as plain memory, in the order of `kernels.Arrays`; absent ones are replaced by u with size 0."""
    D = x.u.new_zeros(x.u.shape[2]) if x.D is None else x.D
    given = (x.u, x.dt, x.A.mT, x.B, x.C, D, *(x.u if t is None else t for t in (x.z, x.h0, reset)))
    return [plain(t).detach() for t in given]


def _run(
    make: Callable[[Any], Any], x: Inputs, reset: Tensor | None, sizes: list[int], rest: list[Tensor], reverse: bool
) -> None:
    b, l, d = x.u.shape
    n, lanes = x.A.shape[1], _lanes(b, d)
    inputs = _plain(x, reset)
    flags = [reverse, x.z is not None, x.h0 is not None, reset is not None]
    table = [lanes, b, l, d, n, *flags, *sizes, *(t.data_ptr() for t in (*inputs, *rest))]
    run(compile_for(make, x.u.dtype), table, b * -(-d // lanes), threads_for(_COST * b * l * d * n))


@njit
def _inputs(at: Any, sizes: Any, gated: int, started: int, packed: int, dtype: Any) -> kernels.Arrays:
    """The first nine addresses as arrays."""
    b, l, d, n = sizes
    z, h0 = (b, l, d) if gated else (0, 0, 0), (b, d, n) if started else (0, 0, 0)
    return kernels.Arrays(
        carray(pointer(at[0], dtype), (b, l, d)),
        carray(pointer(at[1], dtype), (b, l, d)),
        carray(pointer(at[2], dtype), (n, d)),
        carray(pointer(at[3], dtype), (b, l, n)),
        carray(pointer(at[4], dtype), (b, l, n)),
        carray(pointer(at[5], dtype), (d,)),
        carray(pointer(at[6], dtype), z),
        carray(pointer(at[7], dtype), h0),
        carray(pointer(at[8], types.uint8), (b, l) if packed else (0, 0)),
    )


def _forward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 22)
        lanes, b, l, d, n, reverse, gated, started, packed, saves = w[HEAD : HEAD + 10]
        at = w[HEAD + 10 :]
        x = _inputs(at, (b, l, d, n), gated, started, packed, dtype)
        out = kernels.Results(
            carray(pointer(at[9], dtype), (b, l, d)),
            carray(pointer(at[10], dtype), (b, d, n)),
            carray(pointer(at[11], dtype), (b, saves, n, d)),
        )
        kernels.forward_tasks(share(w), lanes, x, out, reverse != 0)

    return kernel(body)


def _backward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 31)
        lanes, b, l, d, n, reverse, gated, started, packed, saves, blocks = w[HEAD : HEAD + 11]
        at = w[HEAD + 11 :]
        x = _inputs(at, (b, l, d, n), gated, started, packed, dtype)
        up = kernels.Upstream(
            carray(pointer(at[9], dtype), (b, saves, n, d)),
            carray(pointer(at[10], dtype), (b, l, d)),
            carray(pointer(at[11], dtype), (b, d, n)),
        )
        out = kernels.Gradients(
            carray(pointer(at[12], dtype), (b, l, d)),
            carray(pointer(at[13], dtype), (b, l, d)),
            carray(pointer(at[14], dtype), (b, n, d)),
            carray(pointer(at[15], dtype), (blocks, b, l, n)),
            carray(pointer(at[16], dtype), (blocks, b, l, n)),
            carray(pointer(at[17], dtype), (b, d)),
            carray(pointer(at[18], dtype), x.z.shape),
            carray(pointer(at[19], dtype), (b, d, n)),
        )
        kernels.backward_tasks(share(w), lanes, x, up, out, reverse != 0)

    return kernel(body)


def _total(parts: Tensor) -> Tensor:
    """The sum over the first axis, always in the same order: sequentially, for any number of threads."""
    first, *others = parts.unbind(0) if parts.shape[0] else (parts.sum(0),)
    return sum(others, first)
