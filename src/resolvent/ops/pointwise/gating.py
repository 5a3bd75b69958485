"""The pointwise parts of Mega's block with channels first, (c, b, l), each one pass over memory in each direction.

    biased_silu   silu(x + bias)
    opened        silu(r + bias) o
    blended       sigmoid(u + bias_u) (silu(h + w + bias_h) - x)

Biases (c,) are added here, where it costs nothing: as the addend of a product they would cost a pass of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph


def biased_silu(x: Tensor, bias: Tensor) -> Tensor:
    return _run("biased_silu", x, bias)


def open_gates(r: Tensor, o: Tensor, bias: Tensor) -> Tensor:
    return _run("open_gates", r, o, bias)


def blend(u: Tensor, h: Tensor, w: Tensor, x: Tensor, bias_u: Tensor, bias_h: Tensor) -> Tensor:
    return _run("blend", u, h, w, x, bias_u, bias_h)


def _biased_silu(x: Tensor, bias: Tensor) -> Tensor:
    return F.silu(_add_bias(x, bias)).to(x.dtype)


def _open_gates(r: Tensor, o: Tensor, bias: Tensor) -> Tensor:
    return (F.silu(_add_bias(r, bias)) * o).to(o.dtype)


def _blend(u: Tensor, h: Tensor, w: Tensor, x: Tensor, bias_u: Tensor, bias_h: Tensor) -> Tensor:
    return (torch.sigmoid(_add_bias(u, bias_u)) * (F.silu(_add_bias(h, bias_h) + w) - x)).to(x.dtype)


PLAIN: dict[str, Callable[..., Tensor]] = {"biased_silu": _biased_silu, "open_gates": _open_gates, "blend": _blend}


def _add_bias(x: Tensor, bias: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide) + bias.to(wide)[:, None, None]


def _run(name: str, *inputs: Tensor) -> Tensor:
    if _triton(inputs[0]) is None:
        return PLAIN[name](*inputs)
    return attempt(name, lambda: _Gating.apply(name, *inputs), lambda: PLAIN[name](*inputs))


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not serve."""
    return kernels("pointwise", "gating", x)


class _Gating(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, *inputs: Tensor) -> Tensor:
        out: Tensor = _triton(inputs[0]).forward(name, inputs)
        ctx.save_for_backward(*inputs)
        ctx.name = name
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, g, needs = ctx.saved_tensors, gradients[0], ctx.needs_input_grad[1:]
        learn = any(need for need, t in zip(needs, inputs, strict=True) if t.dim() == 1)

        def again() -> tuple[Tensor | None, ...]:
            return None, *gradients_by_graph(lambda *t: (PLAIN[ctx.name](*t),), inputs, (g,), needs)

        def kernel() -> tuple[Tensor | None, ...]:
            return None, *_triton(g).backward(ctx.name, g, inputs, learn)

        return again() if by_graph_only(g) else attempt(f"{ctx.name}_backward", kernel, again)
