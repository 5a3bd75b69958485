"""The inputs of the selective scan, checked once.

Shape letters: b batch, l length, d channels, n states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.ops.checks import check_real

CHUNK = 32  # steps between saved states: every backend saves (b, ceil(l / CHUNK), n, d), the backward's only extra
TILE = 4  # the same for kernels that save more, to recompute less


class Inputs(NamedTuple):
    """The arguments of one scan. The order is that of the public function."""

    u: Tensor  # (b, l, d) input
    dt: Tensor  # (b, l, d) time step, already positive
    A: Tensor  # (d, n)
    B: Tensor  # (b, l, n)
    C: Tensor  # (b, l, n)
    D: Tensor | None = None  # (d,) skip
    z: Tensor | None = None  # (b, l, d) gate
    h0: Tensor | None = None  # (b, d, n) state before the first step


def each(change: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same inputs with `change` applied; absent ones stay absent."""
    values: list[Any] = [None if tensor is None else change(tensor) for tensor in x]
    return Inputs(*values)


def cast(x: Inputs, dtype: torch.dtype) -> Inputs:
    """The inputs in one dtype; unchanged if they are already."""
    if all(tensor is None or tensor.dtype == dtype for tensor in x):
        return x
    return each(lambda tensor: tensor.to(dtype), x)


def make_steps(x: Inputs, bias: Tensor | None) -> Inputs:
    """With a bias (d,), the inputs whose dt is softplus(dt + bias), in the wider of their dtypes."""
    return x if bias is None else x._replace(dt=F.softplus(x.dt + bias))


def undo_steps(x: Inputs, bias: Tensor | None, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """From the gradients of `make_steps` those of x, and with a bias its own after them."""
    if bias is None:
        return gradients
    raw = gradients[1] * torch.sigmoid(x.dt + bias)
    return gradients[0], raw, *gradients[2:], raw.sum((0, 1))


def chunks(length: int) -> int:
    """The number of states saved by a scan of this length."""
    return -(-length // CHUNK)


def states_to_save(x: Inputs, save: bool) -> Tensor:
    """Memory for the states before each chunk, (b, chunks, n, d), none unless `save`.

    On a GPU the n states of a channel are contiguous, as in its kernels.
    """
    b, l, d = x.u.shape
    n, count, dtype = x.A.shape[1], chunks(l) if save else 0, accumulator(x)
    if x.u.is_cuda:
        return x.u.new_empty(b, count, d, n, dtype=dtype).mT
    return x.u.new_empty(b, count, n, d, dtype=dtype)


def accumulator(x: Inputs) -> torch.dtype:
    """The dtype of the state: the widest of the inputs, never half."""
    dtype = x.u.dtype
    for tensor in x[1:]:
        if tensor is not None and tensor.dtype != dtype:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def check(x: Inputs) -> None:
    """Refuse shapes, dtypes and devices that do not fit together."""
    for name, tensor in zip(Inputs._fields, x, strict=True):
        check_real("selective_scan", name, tensor, ("u", x.u), optional=name in ("D", "z", "h0"))
    if x.u.ndim != 3:
        raise ValueError(f"selective_scan: expected u of shape (b, l, d), got {tuple(x.u.shape)}; add an axis.")
    if x.A.ndim != 2:
        raise ValueError(f"selective_scan: expected A of shape (d, n), got {tuple(x.A.shape)}; it is fixed in time.")
    b, l, d = x.u.shape
    n = x.A.shape[1]
    shapes = ((b, l, d), (b, l, d), (d, n), (b, l, n), (b, l, n), (d,), (b, l, d), (b, d, n))
    for name, tensor, shape in zip(Inputs._fields, x, shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"selective_scan: expected {name} of shape {shape} for u {(b, l, d)} and A {tuple(x.A.shape)}, "
                f"got {tuple(tensor.shape)}; expand or transpose it."
            )
