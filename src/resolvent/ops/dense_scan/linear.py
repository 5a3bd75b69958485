"""`torch.nn.functional.linear` whose backward pass also keeps its dtype inside autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.runtime.transforms import (
    autocast_is_suspended,
    by_graph_only,
    gradients_by_graph,
    is_traced,
    outside_autocast,
)


def linear(x: Tensor, W: Tensor) -> Tensor:
    """x (..., d) W' for W (e, d): using a custom Function only if `backward()` may run under autocast."""
    if not autocast_is_suspended() or is_traced(x) or not torch.is_grad_enabled():
        return F.linear(x, W)
    y: Tensor = _Linear.apply(x, W)
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor) -> Tensor:
        ctx.save_for_backward(x, W)
        return F.linear(x, W)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, W = ctx.saved_tensors
        g = gradients[0]
        if by_graph_only(g):
            return gradients_by_graph(lambda *t: (F.linear(*t),), (x, W), (g,), ctx.needs_input_grad)
        return g @ W, g.reshape(-1, W.shape[0]).mT @ x.reshape(-1, W.shape[1])
