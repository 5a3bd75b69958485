"""Mega's two blocks with channels first, (d, b, l): gated attention to both sides, and the feed-forward part.

The moving averages of both directions are Toeplitz products, the maps over channels plain products, attention is made
of batched products on views (`column_attention`), and biases are added in the passes that follow (`gating`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks import columns
from resolvent.blocks.column_attention import bias_line, column_attention
from resolvent.blocks.gating import biased_silu, blended, opened
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.norm import LayerNorm
from resolvent.blocks.skip_norm import Ending, ending, skip_norm
from resolvent.ssm.impulse import impulse
from resolvent.ssm.toeplitz import toeplitz
from resolvent.ssm.two_sided import TwoSided

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


def covers(block: nn.Module) -> bool:
    if not (isinstance(block, GatedAttention) and isinstance(block.norm, LayerNorm)):
        return False
    dropped = block.training and block.dropout.p > 0
    full = block.bidirectional and block.reach.kind == "full" and block.attention == "softmax"
    return full and isinstance(block.ads, nn.Identity) and not (dropped or block.ema.silu or block.ema.check_finite)


def weights(block: GatedAttention, length: int, dtype: torch.dtype) -> Weights:
    """From the parameters as they are; differentiable where gradients are on."""
    assert isinstance(block.norm, LayerNorm)
    base, value, leave = block.base, block.value, block.leave
    wide = torch.promote_types(dtype, torch.float32)
    past, future = (toeplitz(impulse(b, length).to(wide), dtype) for b in (block.ema._bank(), block.ema._bank_back()))
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
        end=ending(block.norm),
    )


def _bias(module: nn.Module) -> Tensor:
    bias = module.bias
    assert isinstance(bias, Tensor)
    return bias


def run(block: GatedAttention, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    h = columns.norm(block.norm, x) if block.prenorm else x
    base = _product(w.W_base, F.silu(w.ema(h)))
    u, z, r, hx = base.split([block.d_model, block.z, block.hidden, block.d_model])
    z = biased_silu(z, w.b_z)
    q, k = (torch.addcmul(beta, z, gamma) for gamma, beta in zip(w.gamma, w.beta, strict=True))
    o = column_attention(q, k, biased_silu(_product(w.W_value, h), w.b_value), w.line)
    step = blended(u, hx, _product(w.W_leave, opened(r, o, w.b_r)), x, w.b_u, w.b_h)
    return x + step if block.prenorm else skip_norm(x, step, w.end, AXIS)


def _product(W: Tensor, x: Tensor) -> Tensor:
    return (W @ x.flatten(1)).view(-1, *x.shape[1:])
