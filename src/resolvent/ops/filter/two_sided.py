"""Convolution with one kernel into the past and one into the future, both with the current step, by Toeplitz products.

    y_t = sum_s k_s x_{t-s} + sum_s k'_s x_{t+s}                                    x, y (d, b, l), kernels (d, l)

The second sum is the adjoint of a causal convolution, so `toeplitz` serves both, and the second adds in its store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.filter.operation import stand_in
from resolvent.ops.filter.toeplitz import Toeplitz, plain_product
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast


@dataclass(frozen=True)
class TwoSided:
    """The tables of either direction."""

    past: Toeplitz
    future: Toeplitz

    def detached(self) -> TwoSided:
        return TwoSided(self.past.detached(), self.future.detached())

    def forward(self, x: Tensor) -> Tensor:
        """y, without recording a graph, as in the next two."""
        return self.future.adjoint(x, onto=self.past.forward(x))

    def adjoint(self, gy: Tensor, onto: Tensor | None = None) -> Tensor:
        """∂x of ∂y, or added to `onto` in place."""
        return self.past.adjoint(gy, onto=self.future.forward(gy, onto=onto))

    def taps(self, x: Tensor, gy: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both kernels."""
        return self.past.taps(x, gy)[0], self.future.taps(gy, x)[0]

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = _TwoSided.apply(x, self.past.kernel, self.future.kernel, self.detached())
        return y


def plain_two_sided(x: Tensor, past: Tensor, future: Tensor) -> Tensor:
    """The same with torch's own operations and whole matrices."""
    return plain_product(x, past) + plain_product(x.flip(-1), future).flip(-1)


class _TwoSided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, past: Tensor, future: Tensor, tables: TwoSided) -> Tensor:
        ctx.tables, ctx.learn, ctx.like = tables, any(ctx.needs_input_grad[1:3]), (x.shape, x.dtype)
        ctx.save_for_backward(past, future, x if ctx.learn else None)
        at = x.contiguous()  # x itself is saved, so that second derivatives flow through it
        return tables.forward(at)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        past, future, x = ctx.saved_tensors
        gy, needs = gradients[0], list(ctx.needs_input_grad[:3])
        if by_graph_only(gy):
            at = stand_in(past, ctx.like) if x is None else x
            found = gradients_by_graph(lambda *t: (plain_two_sided(*t),), (at, past, future), (gy,), needs)
            return *found, None
        gy, tables = gy.contiguous(), ctx.tables
        return tables.adjoint(gy), *((None, None) if x is None else tables.taps(x.contiguous(), gy)), None
