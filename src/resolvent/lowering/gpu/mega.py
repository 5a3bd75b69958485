"""Mega's two blocks with channels first, (d, b, l): gated attention to both sides, and the feed-forward part.

The moving averages of both directions are Toeplitz products, the maps over channels plain products, attention is made
of batched products on views (`column_attention`), and biases are added in the passes that follow (`gating`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.lowering import columns
from resolvent.lowering.program import Filter, GatedAttention, Linear, Node, Norm
from resolvent.ops.attention.column_attention import bias_line, column_attention
from resolvent.ops.filter.toeplitz import toeplitz
from resolvent.ops.filter.two_sided import TwoSided
from resolvent.ops.pointwise.gating import biased_silu, blend, open_gates
from resolvent.ops.pointwise.skip_norm import Ending, ending, skip_norm
from resolvent.ssm.impulse import impulse

AXIS = 0  # of the channels


class Weights(NamedTuple):
    ema: TwoSided
    W_base: Tensor  # (2d + z + w, d): W_u, W_z, W_r, W_h
    W_value: Tensor  # (w, d)
    W_leave: Tensor  # (d, w)
    b_u: Tensor
    b_z: Tensor
    b_r: Tensor
    b_h: Tensor  # of W_h and of W_leave
    b_value: Tensor
    gamma: Tensor  # (2, z, 1, 1), those of the queries with the scale of the scores
    beta: Tensor  # (2, z, 1, 1)
    line: Tensor  # (2l - 1,)
    end: Ending


def covers(node: Node) -> bool:
    match node:
        case GatedAttention(norm=(Norm(kind="layer"),), average=(Filter() as ema,), scale=(), dropout=(), module=own):
            full = ema.module.bidirectional and own.reach.kind == "full" and own.attention == "softmax"
            return full and not (ema.silu or ema.module.check_finite)
    return False


def weights(node: GatedAttention, length: int, dtype: torch.dtype) -> Weights:
    """From the parameters as they are; differentiable where gradients are on."""
    block, ema = node.module, node.average[0].module
    base, value, leave = node.base, node.value, node.leave
    wide = torch.promote_types(dtype, torch.float32)
    past, future = (toeplitz(impulse(b, length).to(wide), dtype) for b in (ema._bank(), ema._bank(back=True)))
    b_u, b_z, b_r, b_h = _bias(base).split([block.d_model, block.z, block.hidden, block.d_model])
    gamma, beta = (torch.stack([t[0] * block.z**-0.5, t[1]]).to(dtype) for t in (block.gamma, block.beta))
    return Weights(
        ema=TwoSided(past, future),
        W_base=base.weight.to(dtype),
        W_value=value.weight.to(dtype),
        W_leave=leave.weight.to(dtype),
        b_u=b_u,
        b_z=b_z,
        b_r=b_r,
        b_h=b_h + _bias(leave),
        b_value=_bias(value),
        gamma=gamma[:, :, None, None],
        beta=beta[:, :, None, None],
        line=bias_line(block.bias.table[0], length),
        end=ending(node.norm[0].module),
    )


def _bias(node: Linear) -> Tensor:
    assert node.bias is not None
    return node.bias


def run(node: GatedAttention, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    block, h = node.module, columns.norm(node.norm, x) if node.prenorm else x
    base = _product(w.W_base, F.silu(w.ema(h)))
    u, z, r, hx = base.split([block.d_model, block.z, block.hidden, block.d_model])
    z = biased_silu(z, w.b_z)
    q, k = (torch.addcmul(beta, z, gamma) for gamma, beta in zip(w.gamma, w.beta, strict=True))
    o = column_attention(q, k, biased_silu(_product(w.W_value, h), w.b_value), w.line)
    step = blend(u, hx, _product(w.W_leave, open_gates(r, o, w.b_r)), x, w.b_u, w.b_h)
    return x + step if node.prenorm else skip_norm(x, step, w.end, AXIS)


def _product(W: Tensor, x: Tensor) -> Tensor:
    return (W @ x.flatten(1)).view(-1, *x.shape[1:])
