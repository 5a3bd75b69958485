"""The skip and the LayerNorm that end a post-norm block: one pass over memory in each direction.

    z = scale x + y + shift,    u = (z - mean z) / sqrt(var z + eps),    out = gamma u + beta        over the channels

Channels are first, (d, b, l), or last, (b, l, d). `scale` (d,) merges a layer's direct term D x into the skip,
`shift` (d,) is the bias of the map that made y. Attacks do not compute what only parameter gradients need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from resolvent.runtime.fallback import kernels
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph

if TYPE_CHECKING:
    from resolvent.blocks.norm import LayerNorm

WIDEST = 1024  # most channels for which a tile fits in registers


class Ending(NamedTuple):
    """Parameters of the norm, and the scale and shift before it, if any."""

    gamma: Tensor  # (d,)
    beta: Tensor  # (d,)
    scale: Tensor | None  # (d,)
    shift: Tensor | None  # (d,)
    eps: float


def ending(norm: LayerNorm, scale: Tensor | None = None, shift: Tensor | None = None) -> Ending:
    return Ending(norm.weight, norm.bias, scale, shift, norm.eps)


def skip_norm(x: Tensor, y: Tensor, w: Ending, axis: int) -> Tensor:
    """norm(scale x + y + shift) over `axis`, 0 or -1, of x and y of one shape; in their dtype."""
    if _triton(x, axis) is None:
        return plain_skip_norm(x, y, w, axis)
    return attempt("skip_norm", lambda: _SkipNorm.apply(x, y, *w, axis), lambda: plain_skip_norm(x, y, w, axis))


def plain_skip_norm(x: Tensor, y: Tensor, w: Ending, axis: int) -> Tensor:
    """The same in torch operations."""
    shape = (-1, 1, 1) if axis == 0 else (-1,)
    wide = torch.promote_types(x.dtype, torch.float32)
    z = y.to(wide) if w.shift is None else y.to(wide) + w.shift.view(shape).to(wide)
    z = z + x if w.scale is None else torch.addcmul(z, x.to(wide), w.scale.view(shape).to(wide))
    var, mean = torch.var_mean(z, axis, correction=0, keepdim=True)
    unit = (z - mean) * torch.rsqrt(var + w.eps)
    return torch.addcmul(w.beta.view(shape), unit, w.gamma.view(shape)).to(x.dtype)


def _triton(x: Tensor, axis: int) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    return kernels("pointwise", "skip_norm", x, None if x.shape[axis] <= WIDEST else f"more than {WIDEST} channels")


def _post_norm(x: Tensor, w: Ending, axis: int) -> Any:
    """The kernels of passes without parameter gradients, or None if they do not support x."""
    try:
        from resolvent.ops.pointwise import post_norm_check
        from resolvent.ops.pointwise import post_norm_triton as own
    except ImportError:
        return None
    if axis != 0 or w.shift is not None or x.dim() != 3 or not own.aligns(*x.shape[1:]):
        return None
    return own if post_norm_check.serves(x, x.shape[0], x.shape[0], x.dtype, "bare") else None


class _SkipNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
        *tensors, eps, axis = rest
        w = Ending._make([*tensors, eps])
        ctx.eps, ctx.axis, ctx.learn = eps, axis, any(ctx.needs_input_grad[2:6])
        ctx.own = None if ctx.learn else _post_norm(x, w, axis)
        if ctx.own is not None:
            out, (unit, rstd, *_) = ctx.own.forward(y, x, ctx.own.bare(w), x.dtype)
        else:
            out, unit, rstd = _triton(x, axis).forward(x, y, w, axis)
        ctx.save_for_backward(x, y, *tensors, unit, rstd)
        found: Tensor = out
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        *inputs, unit, rstd = ctx.saved_tensors
        g, w = gradients[0], Ending._make([*inputs[2:], ctx.eps])
        x = inputs[0] if ctx.learn and w.scale is not None else None

        def again() -> tuple[Any, ...]:
            run = lambda x, y, *own: (plain_skip_norm(x, y, Ending._make([*own, ctx.eps]), ctx.axis),)  # noqa: E731
            return *gradients_by_graph(run, inputs, (g,), ctx.needs_input_grad[:6]), None, None

        def kernel() -> tuple[Any, ...]:
            if ctx.own is not None:
                found = ctx.own.backward(g, ctx.own.Kept(unit, rstd, None, None), ctx.own.bare(w), g.shape[0])
                return *found, *(None,) * 6
            gx, gy, sums = _triton(g, ctx.axis).backward(g, (unit, rstd, x), w, ctx.axis, ctx.learn)
            rows = (None,) * 4 if sums is None else sums
            return gx, gy, *(None if t is None else s for s, t in zip(rows, w[:4], strict=True)), None, None

        return again() if by_graph_only(g) else attempt("skip_norm_backward", kernel, again)
