"""The projections of RG-LRU's gates: x times two block-diagonal matrices, in one dtype forward and backward.

Autograd would suffice; in half precision, where a pass is host-bound, one node with few calls is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.ops.product import sum_rows
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast

Gates = tuple[Tensor, Tensor]


def project(x: Tensor, W_a: Tensor, W_x: Tensor, b_a: Tensor, b_x: Tensor) -> Gates:
    """Both gates before their sigmoid, (..., d): of x (..., d), W (heads, k, k) and biases (d,), all of one dtype."""
    return blockwise(x, W_a, b_a), blockwise(x, W_x, b_x)


def project_in_one(*given: Tensor) -> Gates:
    """`project` as one node of the graph."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
        return project(*given)
    found: Gates = _Project.apply(*given)
    return found


def blockwise(x: Tensor, W: Tensor, bias: Tensor) -> Tensor:
    """x (..., d) times a block-diagonal matrix W (heads, k, k), plus bias (d,)."""
    heads = len(W)
    if heads == 1:
        return F.linear(x, W[0].mT, bias)
    return _join_heads(_by_heads(x, heads) @ W, x) + bias


def _by_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, heads, x.shape[-1] // heads).transpose(0, 1)  # (heads, rows, k)


def _join_heads(y: Tensor, x: Tensor) -> Tensor:
    return y.transpose(0, 1).reshape(x.shape)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Gates:
        ctx.save_for_backward(*given)
        return project(*given)

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, needs = ctx.saved_tensors, ctx.needs_input_grad
        if by_graph_only(*gradients):
            return gradients_by_graph(project, given, gradients, needs)
        x, *weights, _, _ = given
        heads = len(weights[0])
        g = [_by_heads(t, heads) for t in gradients]
        of_x = None
        if needs[0]:
            of_x = _join_heads(torch.bmm(g[0], weights[0].mT).baddbmm_(g[1], weights[1].mT), x)
        across = _by_heads(x, heads).mT  # (heads, k, rows)
        of_weights = (torch.bmm(across, t) if need else None for t, need in zip(g, needs[1:3], strict=True))
        of_biases = (sum_rows(t) if need else None for t, need in zip(gradients, needs[3:], strict=True))
        return of_x, *of_weights, *of_biases
