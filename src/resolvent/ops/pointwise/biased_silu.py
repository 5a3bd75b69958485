"""silu(x + bias) with channels first, (c, b, l), one pass over memory in each direction.

The bias (c,) is added here, where it is free: added to a product it would cost a separate pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph


def biased_silu(x: Tensor, bias: Tensor) -> Tensor:
    if _triton(x) is None:
        return plain_biased_silu(x, bias)
    return attempt("biased_silu", lambda: _BiasedSilu.apply(x, bias), lambda: plain_biased_silu(x, bias))


def plain_biased_silu(x: Tensor, bias: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.silu(x.to(wide) + bias.to(wide)[:, None, None]).to(x.dtype)


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    return kernels("pointwise", "biased_silu", x)


class _BiasedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        found: Tensor = _triton(x).forward(x, bias)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, g, needs = ctx.saved_tensors, gradients[0], ctx.needs_input_grad

        def again() -> tuple[Tensor | None, ...]:
            return gradients_by_graph(lambda *t: (plain_biased_silu(*t),), inputs, (g,), needs)

        def kernel() -> tuple[Tensor | None, ...]:
            x, bias = inputs
            gx, gb = _triton(g).backward(g, x, bias, needs[1])
            return gx, None if gb is None else gb.to(bias.dtype)

        return again() if by_graph_only(g) else attempt("biased_silu_backward", kernel, again)
