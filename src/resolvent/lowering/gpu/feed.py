"""A residual feed-forward block, x + W2 act(W1 x + b1) + b2, with channels first, (d, b, l)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.lowering import columns
from resolvent.lowering.program import Activation, Linear, Mix, Node, Norm, Skip
from resolvent.ops.pointwise import Ending, biased_silu, ending, feed_forward, product

AXIS = 0  # channel axis


class Weights(NamedTuple):
    W_up: Tensor  # (w, d)
    W_down: Tensor  # (d, w)
    b_up: Tensor  # (w,)
    end: Ending  # b_down is its shift


def covers(node: Node) -> bool:
    match node:
        case Skip(
            norm=(Norm(kind="layer"),),
            layer=(Mix(inside=(Linear() as up, Activation(kind="silu"), Linear() as down)),),
            scale=(),
            mixer=(),
            dropout=(),
            adds=True,
        ):
            return up.bias is not None and down.bias is not None
    return False


def weights(block: Skip, length: int, dtype: torch.dtype) -> Weights:
    """Weights of the current parameters; differentiable if gradients are enabled."""
    (mix,) = block.layer
    assert isinstance(mix, Mix)
    up, _, down = mix.inside
    assert isinstance(up, Linear)
    assert isinstance(down, Linear)
    assert up.bias is not None
    W_up, W_down = up.weight.to(dtype), down.weight.to(dtype)
    return Weights(W_up, W_down, up.bias, ending(block.norm[0].module, shift=down.bias))


def run(block: Skip, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    if not block.prenorm:
        return feed_forward(x, *w)
    h = columns.norm(block.norm, x)
    y = product(w.W_down, biased_silu(product(w.W_up, h), w.b_up))
    assert w.end.shift is not None
    return x + y + w.end.shift.to(x.dtype)[:, None, None]
