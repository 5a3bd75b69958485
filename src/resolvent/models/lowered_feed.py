"""A residual feed-forward block, x + W2 act(W1 x + b1) + b2, with channels first, (d, b, l)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from resolvent.blocks import columns
from resolvent.blocks.gating import biased_silu
from resolvent.blocks.mixer import MLP
from resolvent.blocks.norm import LayerNorm
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.residual import Residual
from resolvent.blocks.skip_norm import Ending, ending, skip_norm

AXIS = 0  # of the channels


class Weights(NamedTuple):
    W_up: Tensor  # (w, d)
    W_down: Tensor  # (d, w)
    b_up: Tensor  # (w,)
    end: Ending  # b_down is its shift


def covers(block: nn.Module) -> bool:
    if not (isinstance(block, Residual) and isinstance(block.layer, Pointwise) and isinstance(block.norm, LayerNorm)):
        return False
    inner = block.layer.inner
    plain = isinstance(block.ads, nn.Identity) and isinstance(block.mixer, nn.Identity) and block.skip
    dropped = any(m.training and m.p > 0 for m in block.modules() if isinstance(m, nn.Dropout))
    return plain and isinstance(inner, MLP) and isinstance(inner.act, nn.SiLU) and not dropped


def weights(block: Residual, length: int, dtype: torch.dtype) -> Weights:
    """From the parameters as they are; differentiable where gradients are on."""
    assert isinstance(block.layer, Pointwise)
    inner, norm = block.layer.inner, block.norm
    assert isinstance(inner, MLP)
    assert isinstance(norm, LayerNorm)
    W_up, W_down = inner.up.weight.to(dtype), inner.down.weight.to(dtype)
    return Weights(W_up, W_down, inner.up.bias, ending(norm, shift=inner.down.bias))


def run(block: Residual, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    h = columns.norm(block.norm, x) if block.prenorm else x
    wide = biased_silu((w.W_up @ h.flatten(1)).view(-1, *x.shape[1:]), w.b_up)
    y = (w.W_down @ wide.flatten(1)).view_as(x)
    if not block.prenorm:
        return skip_norm(x, y, w.end, AXIS)
    assert w.end.shift is not None
    return x + y + w.end.shift.to(x.dtype)[:, None, None]
