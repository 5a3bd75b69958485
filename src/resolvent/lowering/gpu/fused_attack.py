"""Blocks of `fused` in a pass without parameter gradients, by the kernels of `post_norm_triton`.

The same functions as in `fused_triton`, for the blocks and shapes accepted by `serves`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.lowering.gpu.fused_torch import Kept, Weights
from resolvent.ops.pointwise import post_norm_check, post_norm_triton
from resolvent.ops.pointwise.post_norm_triton import Block

KINDS = {("none", "none", ""): "plain", ("gelu", "gelu", ""): "gelu", ("none", "none", "sigmoid"): "scaled"}


def serves(y: Tensor, w: Weights) -> bool:
    """Whether the kernels support y (c, b, l)."""
    (c, b, l), d, kind = y.shape, w.low.shape[0], _kind(w)
    return kind is not None and post_norm_triton.aligns(b, l) and post_norm_check.serves(y, d, c, w.dtype, kind)


def forward(y: Tensor, r: Tensor | None, w: Weights, keep: bool = True) -> tuple[Tensor, Kept | None]:
    """out (d, b, l) of y (c, b, l) and the skip r (d, b, l), and with `keep` the tensors saved for `backward`."""
    out, kept = post_norm_triton.forward(y, r, _block(w), w.dtype, keep)
    return out, None if kept is None else Kept(kept.rows, kept.numbers, kept.y, kept.codes)


def backward(
    g: Tensor, kept: Kept, y: Tensor | None, w: Weights, learn: bool
) -> tuple[Tensor | None, Tensor, tuple[Tensor | None, ...] | None]:
    """The gradients of r, which an entry lacks, and y."""
    if learn:
        raise ValueError("fused: expected a pass without parameter gradients here.")
    given = post_norm_triton.Kept(kept.unit, kept.rstd, kept.first, kept.last)
    gz, gy = post_norm_triton.backward(g, given, _block(w), w.low.shape[1])
    return gz, gy, None


def _kind(w: Weights) -> str | None:
    """The kernels' name for such blocks; None if unsupported."""
    bends = w.act, w.final, w.sigma if w.low_a is not None else ""
    if w.entry:
        return "entry" if bends == ("none", "none", "") and w.low.dtype == torch.float32 else None
    return KINDS.get(bends)


def _block(w: Weights) -> Block:
    kind = _kind(w)
    if kind is None:
        raise ValueError("fused: expected a block that `serves` names.")
    return Block(kind, w.eps, w.gamma, w.beta, w.low, w.bias, None, w.low_a, w.ba)
