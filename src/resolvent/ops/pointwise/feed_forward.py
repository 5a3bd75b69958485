"""A post-norm feed-forward block with channels first, norm(x + W_down silu(W_up x + b_up) + b_down), as one operation.

In the hand-written backward, the gradient through the maps is added to the skip's in the product itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops.pointwise.biased_silu import plain_biased_silu
from resolvent.ops.pointwise.skip_norm import WIDEST, Ending, plain_skip_norm
from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast


def feed_forward(x: Tensor, W_up: Tensor, W_down: Tensor, b_up: Tensor, end: Ending) -> Tensor:
    """x (d, b, l); end has no scale, and b_down as its shift."""
    if _triton(x) is None:
        return plain_feed_forward(x, W_up, W_down, b_up, end)
    run = lambda: _Feed.apply(x, W_up, W_down, b_up, end.gamma, end.beta, end.shift, end.eps)  # noqa: E731
    return attempt("feed_forward", run, lambda: plain_feed_forward(x, W_up, W_down, b_up, end))


def plain_feed_forward(x: Tensor, W_up: Tensor, W_down: Tensor, b_up: Tensor, end: Ending) -> Tensor:
    """The same in torch operations."""
    return plain_skip_norm(x, product(W_down, plain_biased_silu(product(W_up, x), b_up)), end, 0)


def product(W: Tensor, x: Tensor) -> Tensor:
    """W x over the channels."""
    return (W @ x.flatten(1)).view(-1, *x.shape[1:])


def add_product(y: Tensor, W: Tensor, x: Tensor) -> Tensor:
    """y + W x, in place."""
    y.flatten(1).addmm_(W, x.flatten(1))
    return y


def outer(g: Tensor, x: Tensor) -> Tensor:
    """The gradient of W, given the gradient g of W x."""
    return g.flatten(1) @ x.flatten(1).mT


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    unfit = None if x.shape[0] <= WIDEST else f"more than {WIDEST} channels"
    return kernels("pointwise", "feed_forward", x, unfit)


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        W_up, W_down, b_up, gamma, beta, shift, eps = rest
        own, at, end = _triton(x), x.contiguous(), Ending(gamma, beta, None, shift, eps)
        raw = product(W_up, at)
        wide = own.biased_silu(raw, b_up)
        y, unit, rstd = own.close(at, product(W_down, wide), end, 0)
        ctx.learn, ctx.eps = any(ctx.needs_input_grad[1:]), eps
        ctx.save_for_backward(x, *rest[:-1], raw, unit, rstd, wide if ctx.learn else None)
        found: Tensor = y
        return found

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        *inputs, raw, unit, rstd, wide = ctx.saved_tensors
        g = gradients[0]

        def again() -> tuple[Any, ...]:
            def run(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, *t: Tensor) -> tuple[Tensor]:
                return (plain_feed_forward(x, up, down, bias, Ending(t[0], t[1], None, t[2], ctx.eps)),)

            return *gradients_by_graph(run, inputs, (g,), ctx.needs_input_grad[:7]), None

        def by_hand() -> tuple[Any, ...]:
            return *_gradients(inputs, (raw, unit, rstd, wide), g, ctx.eps, ctx.learn), None

        return again() if by_graph_only(g) else attempt("feed_forward_backward", by_hand, again)


def _gradients(
    inputs: list[Tensor], made: tuple[Tensor, ...], g: Tensor, eps: float, learn: bool
) -> tuple[Tensor | None, ...]:
    x, W_up, W_down, b_up, gamma, beta, shift = inputs
    raw, unit, rstd, wide = made
    own, at = _triton(x), x.contiguous()
    gx, gy, ends = own.close_backward(g, (unit, rstd, None), Ending(gamma, beta, None, shift, eps), 0, learn)
    gwide = product(W_down.mT, gy)
    maps = [outer(gy, wide)] if learn else []  # before the rest is added: gx is gy
    graw, g_up = own.biased_silu_backward(gwide, raw, b_up, learn, out=gwide)
    gx = add_product(gx, W_up.mT, graw)
    if not learn:
        return gx, *(None,) * 6
    found = (outer(graw, at), *maps, g_up, ends[0], ends[1], ends[3])
    return gx, *(t.to(like.dtype) for t, like in zip(found, inputs[1:], strict=True))
