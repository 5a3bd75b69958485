"""What the tests of the selective scan share: random inputs, and a function with all its gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.ops.selective_scan.reference import selective_reference
from resolvent.scan import selective_scan

ALL = ("D", "z", "h0")


def draw(
    b: int, l: int, d: int, n: int, *, extras: tuple[str, ...] = ALL, dtype: torch.dtype = torch.float64
) -> Inputs:
    """Random inputs that ask for gradients; the optional ones named in `extras` only."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    optional = {"D": normal(d), "z": normal(b, l, d), "h0": normal(b, d, n)}
    dt, A = torch.rand(b, l, d, dtype=torch.float64), -2 * torch.rand(d, n, dtype=torch.float64)
    given = (normal(b, l, d), dt, A, normal(b, l, n), normal(b, l, n))
    every = (*given, *(optional[name] if name in extras else None for name in ALL))
    return Inputs(*(None if t is None else t.to(dtype).requires_grad_() for t in every))


def double(x: Inputs) -> Inputs:
    """The same numbers in float64, as new leaves."""
    return Inputs(*(None if t is None else t.detach().double().requires_grad_() for t in x))


def fast(x: Inputs, reverse: bool = False) -> tuple[Tensor, Tensor]:
    return selective_scan(*x, reverse=reverse)


def slow(x: Inputs, reverse: bool = False) -> tuple[Tensor, Tensor]:
    return selective_reference(x, reverse)


def with_gradients(
    scan: Callable[..., tuple[Tensor, Tensor]], x: Inputs, reverse: bool = False
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """(y, last state) and the gradients of every input under fixed random gradients of both outputs."""
    y, h = scan(x, reverse)
    source = torch.Generator().manual_seed(1)
    upstream = [torch.randn(t.shape, generator=source, dtype=torch.float64).to(t.dtype) for t in (y, h)]
    return (y, h), torch.autograd.grad((y, h), [t for t in x if t is not None], upstream)
