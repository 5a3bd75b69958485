"""Launches of `triton_kernels`: tables of float32 parameters, and their gradients, in one kernel each.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.blocked.tables import largest
from resolvent.ops.modes import triton_kernels as kernels
from resolvent.ops.modes.operation import Kind
from resolvent.ops.modes.response_kernels import response_gradient_kernel, response_kernel
from resolvent.runtime.launch import on_device

KINDS = {Kind.S4D: 0, Kind.DSS: 1, Kind.EMA: 2}
COUNT = {Kind.S4D: 5, Kind.DSS: 4, Kind.EMA: 4}  # parameters before D
ROWS = 16  # powers at a time
STRETCH = 64  # the same for a response


class Maker(NamedTuple):
    """Tables of parameters, and the parameters' gradients from those of the tables; neither records a graph."""

    tables: Callable[..., list[Tensor]]  # (parameters, option, T, delay)
    slopes: Callable[..., list[Tensor]]  # (parameters, gradients of the tables or None, option, T, delay)


def maker(kind: Kind) -> Maker:
    return Maker(partial(_tables, kind), partial(_slopes, kind))


def _tables(kind: Kind, parameters: Sequence[Tensor], option: str, T: int, delay: bool) -> list[Tensor]:
    own, D, (d, n), like = unpack_parameters(kind, parameters)
    number = () if kind is Kind.EMA else (2,)
    s = n * (2 if number else 1)
    shapes = (d, T, T), (d, T, s), (d, T, s), (d, T, n, *number), (d, n, *number)
    made = [like.new_empty(shape) for shape in shapes]
    with on_device(like):
        kernels.tables_kernel[(d,)](
            *own, None if delay else D, made[0], None, *made[1:], n, T, T, s, s, largest_logarithm(like),
            **kernel_sizes(kind, own, n, T, delay),
        )  # fmt: skip
    return made


def _slopes(
    kind: Kind, parameters: Sequence[Tensor], g: Sequence[Tensor | None], option: str, T: int, delay: bool
) -> list[Tensor]:
    own, D, (d, n), like = unpack_parameters(kind, parameters)
    s = n * (1 if kind is Kind.EMA else 2)
    asked = [None if t is None else t.contiguous() for t in g]
    found, out, last = empty_gradients(kind, parameters, d, like, None if delay else D)
    with on_device(like):
        kernels.gradient_kernel[(d,)](
            *own, *asked, *out, last, n, T, T * T, T, T * s, s, T * s, s, 1, 1, largest_logarithm(like),
            **kernel_sizes(kind, own, n, T, delay),
        )  # fmt: skip
    return sum_shared(kind, found)


def response(kind: Kind, parameters: Sequence[Tensor], length: int) -> Tensor:
    """K (d, length) in float32."""
    own, D, (d, n), like = unpack_parameters(kind, parameters)
    K = torch.empty((d, length), dtype=torch.float32, device=like.device)
    with on_device(like):
        response_kernel[(triton.cdiv(length, STRETCH), d)](  # the first grid axis may exceed 65535
            *own, D, K, n, length, largest_logarithm(like), **_response_sizes(kind, own, n), num_warps=4
        )
    return K


def response_gradients(kind: Kind, parameters: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    """The parameters' gradients from that of K."""
    own, D, (d, n), like = unpack_parameters(kind, parameters)
    found, out, last = empty_gradients(kind, parameters, d, like, D)
    with on_device(like):
        response_gradient_kernel[(d,)](
            *own, g.contiguous(), *out, last, n, g.shape[1], largest_logarithm(like),
            **_response_sizes(kind, own, n), num_warps=8,
        )  # fmt: skip
    return sum_shared(kind, found)


def _response_sizes(kind: Kind, own: Sequence[Tensor | None], n: int) -> dict[str, Any]:
    sizes = kernel_sizes(kind, own, n, 1, False)
    return {name: sizes[name] for name in ("KIND", "STEPS", "BN")} | {"ROWS": STRETCH}


def empty_gradients(
    kind: Kind, parameters: Sequence[Tensor], d: int, like: Tensor, D: Tensor | None
) -> tuple[list[Tensor], list[Tensor | None], Tensor | None]:
    """Buffers for the parameters' gradients: all, the first five, and D's if any."""
    shared = kind is Kind.DSS  # lam is shared by all channels
    found = [like.new_empty((d, *t.shape) if shared and i < 2 else t.shape) for i, t in enumerate(parameters)]
    out: list[Tensor | None] = [*found[: COUNT[kind]], None, None]
    return found, out[:5], None if D is None else found[-1]


def sum_shared(kind: Kind, found: list[Tensor]) -> list[Tensor]:
    """Sum the gradients of shared parameters, given as one row per channel."""
    return [t.sum(0) if kind is Kind.DSS and i < 2 else t for i, t in enumerate(found)]


def unpack_parameters(
    kind: Kind, parameters: Sequence[Tensor]
) -> tuple[list[Tensor | None], Tensor | None, torch.Size, Tensor]:
    """Five parameters as kernel arguments, D, (d, n), and one as template for others."""
    count = COUNT[kind]
    own: list[Tensor | None] = [t.detach().contiguous() for t in parameters[:count]]
    D = parameters[count].detach().contiguous() if len(parameters) > count else None
    like = parameters[3]  # (d, n) or (d, n, 2) of every kind
    return [*own, None][:5], D, like.shape[:2], like.detach()


def kernel_sizes(kind: Kind, own: Sequence[Tensor | None], n: int, T: int, delay: bool) -> dict[str, int | bool]:
    steps = own[2].shape[-1] if kind is Kind.DSS and own[2] is not None else 1
    return {
        "KIND": KINDS[kind], "PAIR": kind is not Kind.EMA, "DELAY": delay, "STEPS": steps,
        "BN": max(16, triton.next_power_of_2(n)), "BT": max(16, triton.next_power_of_2(T)), "ROWS": ROWS,
        "num_warps": 4 if n <= 32 else 8,  # powers are computed in float64: more per thread would exceed the registers
    }  # fmt: skip


def largest_logarithm(like: Tensor) -> float:
    """The largest logarithm of a modulus."""
    return math.log(largest(like.dtype))
