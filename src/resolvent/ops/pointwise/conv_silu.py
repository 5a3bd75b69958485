"""silu(taps * x + bias): Mamba's short causal convolution and its activation, one pass over memory in each direction.

    a_t = bias + sum_j weight[:, j] x_{t - (w - 1) + j},    y = silu(a)                     x, y (b, l, e), from zero
    ∂x_s = sum_j weight[:, j] (∂y silu'(a))_{s + (w - 1) - j}

For the backward pass x is saved, from which a is recomputed.
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

MANY = 8  # most taps that fit in a thread's registers
SEQUENCES = 65_535  # most along an axis of the grid


def conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y (b, l, e) in the dtype of x, for taps weight (e, w) and bias (e,)."""
    if _triton(x, weight.shape[1]) is None:
        return plain_conv_silu(x, weight, bias)
    return attempt("conv_silu", lambda: _ConvSilu.apply(x, weight, bias), lambda: plain_conv_silu(x, weight, bias))


def conv_silu_gradients(
    g: Tensor, given: tuple[Tensor, Tensor, Tensor], needs: tuple[bool, ...], into: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradients of x, weight and bias from g, that of y, without a graph; that of x in `into` if given."""
    own = _triton(given[0], given[1].shape[1])

    def plain() -> tuple[Tensor | None, ...]:
        found = gradients_by_graph(lambda *t: (plain_conv_silu(*t),), given, (g,), needs)
        return found if into is None or found[0] is None else (into.copy_(found[0]), *found[1:])

    def kernel() -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = own.backward(g, *given, any(needs[1:]), into)
        return found

    return plain() if own is None else attempt("conv_silu_backward", kernel, plain)


def plain_conv_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in torch operations."""
    wide = torch.promote_types(x.dtype, torch.float32)
    seen = F.pad(x.to(wide), (0, 0, weight.shape[1] - 1, 0))
    return F.silu(causal_taps(seen, weight, bias)).to(x.dtype)


def _triton(x: Tensor, width: int = 1) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    unfit = None if x.stride(2) == 1 else "channels that do not lie side by side"
    if x.shape[1] * max(x.stride(1), x.shape[2]) >= 2**31:  # offsets within a sequence have 31 bits
        unfit = "2^31 numbers or more in a sequence"
    if x.shape[0] > SEQUENCES:
        unfit = f"more than {SEQUENCES} sequences"
    return kernels("pointwise", "conv_silu", x, f"more than {MANY} taps" if width > MANY else unfit)


class _ConvSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        found: Tensor = _triton(x).forward(x, weight, bias)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, needs = ctx.saved_tensors, ctx.needs_input_grad
        if by_graph_only(*gradients):
            return gradients_by_graph(lambda *t: (plain_conv_silu(*t),), given, gradients, needs)
        return conv_silu_gradients(gradients[0], given, needs)
