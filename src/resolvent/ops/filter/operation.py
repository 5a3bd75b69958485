"""One causal filter per channel as an operator on x (d, b, l): y_c = k_c * x_c.

A filter has three products, none of which records a graph: its own, its adjoint, and the gradients of its parameters.
They give the first derivatives; second derivatives use `plain`, which consists of torch operations.

"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast

Own = TypeVar("Own", bound="Filter")


class Filter(ABC):
    @property
    @abstractmethod
    def learned(self) -> tuple[Tensor, ...]:
        """The tensors with gradients: its kernel (d, l), or equivalent tables."""

    @abstractmethod
    def detached(self: Own) -> Own:
        """The same with `learned` detached."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """y (d, b, l) of x (d, b, l)."""

    @abstractmethod
    def adjoint(self, gy: Tensor, onto: Tensor | None = None) -> Tensor:
        """∂x of ∂y, or added to `onto` in place."""

    @abstractmethod
    def taps(self, x: Tensor, gy: Tensor) -> tuple[Tensor, ...]:
        """The gradients of `learned`, from x and ∂y (d, b, l)."""

    @abstractmethod
    def plain(self, x: Tensor, *learned: Tensor) -> Tensor:
        """y as a function of x and `learned`, differentiable to any order."""

    def __call__(self, x: Tensor) -> Tensor:
        """y (d, b, l) of x (d, b, l), differentiable."""
        y: Tensor = _Filtered.apply(x, self.detached(), *self.learned)
        return y


class _Filtered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Filter, *learned: Tensor) -> Tensor:
        ctx.own, ctx.learn, ctx.like = own, any(ctx.needs_input_grad[2:]), (x.shape, x.dtype)
        ctx.save_for_backward(*learned, *((x,) if ctx.learn else ()))
        return own.forward(x.contiguous())

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, own, gy = ctx.saved_tensors, ctx.own, gradients[0]
        learned, x = (saved[:-1], saved[-1]) if ctx.learn else (saved, None)
        if by_graph_only(gy):
            at = stand_in(learned[0], ctx.like) if x is None else x
            needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]]
            found, *rest = gradients_by_graph(lambda *t: (own.plain(*t),), (at, *learned), (gy,), needs)
            return found, None, *rest
        gy = gy.contiguous()
        gx = own.adjoint(gy) if ctx.needs_input_grad[0] else None
        return gx, None, *((None,) * len(learned) if x is None else own.taps(x.contiguous(), gy))


def stand_in(near: Tensor, like: tuple[torch.Size, torch.dtype]) -> Tensor:
    """A substitute for an x that was not saved: a function linear in x has the same gradient everywhere."""
    return near.new_zeros(like[0], dtype=like[1]).requires_grad_()
