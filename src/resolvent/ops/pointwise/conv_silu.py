"""silu(taps * x + bias): Mamba's short causal convolution and its activation, one pass over memory in each direction.

    a_t = bias + sum_j weight[:, j] x_{t - (w - 1) + j},    y = silu(a)                     x, y (b, l, e), from rest
    ∂x_s = sum_j weight[:, j] (∂y silu'(a))_{s + (w - 1) - j}

a is kept for the backward pass; x only where the taps learn.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.filter.taps import causal_taps
from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph


def conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y (b, l, e) in the dtype of x, for taps weight (e, w) and bias (e,)."""
    if _triton(x) is None:
        return plain_conv_silu(x, weight, bias)
    return attempt("conv_silu", lambda: _ConvSilu.apply(x, weight, bias), lambda: plain_conv_silu(x, weight, bias))


def plain_conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in torch's operations."""
    wide = torch.promote_types(x.dtype, torch.float32)
    seen = F.pad(x.to(wide), (0, 0, weight.shape[1] - 1, 0))
    return F.silu(causal_taps(seen, weight, bias)).to(x.dtype)


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not serve."""
    return kernels("pointwise", "conv_silu", x, None if x.stride(2) == 1 else "channels that do not lie side by side")


class _ConvSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, a = _triton(x).forward(x, weight, bias)
        ctx.learn = any(ctx.needs_input_grad[1:])
        ctx.save_for_backward(x, weight, bias, a)
        found: Tensor = y
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, a = ctx.saved_tensors
        g, needs = gradients[0], ctx.needs_input_grad

        def again() -> tuple[Tensor | None, ...]:
            return gradients_by_graph(lambda *t: (plain_conv_silu(*t),), (x, weight, bias), (g,), needs)

        def kernel() -> tuple[Tensor | None, ...]:
            found: tuple[Tensor | None, ...] = _triton(x).backward(g, a, x, weight, ctx.learn)
            return found

        return again() if by_graph_only(g) else attempt("conv_silu_backward", kernel, again)
