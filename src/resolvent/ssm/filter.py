"""One causal filter per channel as an operator on x (d, b, l): y_c = k_c * x_c.

A filter knows three products, none of which records a graph: its own, its adjoint, and the gradient of its kernel. They
make up the first derivatives; gradients of gradients run `plain`, which consists of torch's own operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.ssm.blocked import by_graph_only, gradients_by_graph

Own = TypeVar("Own", bound="Filter")


@dataclass(frozen=True)
class Filter(ABC):
    """Made from the kernel (d, l), which alone is differentiated."""

    kernel: Tensor

    @abstractmethod
    def detached(self: Own) -> Own:
        """The same without a gradient of the kernel."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """y (d, b, l) of x (d, b, l)."""

    @abstractmethod
    def adjoint(self, gy: Tensor, onto: Tensor | None = None) -> Tensor:
        """∂x of ∂y, or added to `onto` in place."""

    @abstractmethod
    def taps(self, x: Tensor, gy: Tensor) -> Tensor:
        """∂k (d, l), in float32 at least, from x and ∂y (d, b, l)."""

    @staticmethod
    @abstractmethod
    def plain(x: Tensor, kernel: Tensor) -> Tensor:
        """y as a function of x and the kernel, differentiable to any order."""

    def __call__(self, x: Tensor) -> Tensor:
        """y (d, b, l) of x (d, b, l), differentiable in x and the kernel."""
        y: Tensor = _Filtered.apply(x, self.kernel, self.detached())
        return y


class _Filtered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, own: Filter) -> Tensor:
        ctx.own = own
        ctx.save_for_backward(kernel, *((x,) if ctx.needs_input_grad[1] else ()))
        return own.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kernel, *kept = ctx.saved_tensors
        gy, own = gradients[0], ctx.own
        if by_graph_only(gy):
            x = kept[0] if kept else torch.zeros_like(gy).requires_grad_()  # linear: without x it does not matter
            needs = [*ctx.needs_input_grad[:1], bool(kept)]
            return *gradients_by_graph(lambda *t: (own.plain(*t),), (x, kernel), (gy,), needs), None
        gy = gy.contiguous()
        gx = own.adjoint(gy) if ctx.needs_input_grad[0] else None
        return gx, own.taps(kept[0], gy).to(kernel.dtype) if kept else None, None
