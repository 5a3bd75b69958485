"""What the input of S6 selects, (s, B, C) = x_proj x and dt = softplus(dt_proj s + dt_bias), with half products.

One node of the graph each way. It keeps no tensor of its own for softplus, whose slope is 1 - exp(-dt).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast

Selected = tuple[Tensor, Tensor, Tensor]


def select(x: Tensor, x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor) -> Selected:
    """dt (..., d), B and C (..., n) in the dtype of x (..., d), x_proj (r + 2n, d) and dt_proj (d, r).

    dt_bias (d,) may be wider, and is added so: rounded to bfloat16 it would move every dt by a hundredth.
    """
    return _select(F.linear(x, x_proj), dt_proj, dt_bias)


def _select(mixed: Tensor, dt_proj: Tensor, dt_bias: Tensor) -> Selected:
    s, B, C = _split(mixed, dt_proj)
    return F.softplus(F.linear(s, dt_proj) + dt_bias).to(mixed.dtype), B, C


def select_in_one(*given: Tensor) -> Selected:
    """`select` as one node of the graph."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
        return select(*given)
    found: Selected = _Select.apply(*given)
    return found


def _split(mixed: Tensor, dt_proj: Tensor) -> Any:
    r = dt_proj.shape[1]
    n = (mixed.shape[-1] - r) // 2
    return mixed.split([r, n, n], -1)


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor) -> Selected:
        mixed = F.linear(x, x_proj)
        dt, B, C = _select(mixed, dt_proj, dt_bias)
        ctx.save_for_backward(x, x_proj, dt_proj, dt_bias, mixed, dt)
        return dt, B, C

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *given, mixed, dt = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if by_graph_only(*gradients):
            return gradients_by_graph(select, given, gradients, needs)
        x, x_proj, dt_proj, dt_bias = given
        minus = torch.expm1(dt.neg()).mul_(gradients[0])  # -softplus' ∂dt
        of_mixed = torch.cat([(minus @ dt_proj).neg_(), *gradients[1:]], -1)  # (..., r + 2n)
        s = _split(mixed, dt_proj)[0]
        rows = minus.flatten(0, -2)
        return (
            of_mixed @ x_proj if needs[0] else None,
            of_mixed.flatten(0, -2).mT @ x.flatten(0, -2) if needs[1] else None,
            (rows.mT @ s.flatten(0, -2)).neg_() if needs[2] else None,
            rows.sum(0, dtype=dt_bias.dtype).neg_() if needs[3] else None,
        )
