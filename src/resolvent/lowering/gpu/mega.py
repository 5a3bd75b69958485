"""Mega's bidirectional gated attention block with channels first, (d, b, l); its feed-forward part is `feed`."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.lowering import columns
from resolvent.lowering.program import Filter, GatedAttention, Linear, Node, Norm
from resolvent.ops.attention import Weights, bias_line, gated_block
from resolvent.ops.filter import TwoSided, toeplitz
from resolvent.ops.pointwise import ending
from resolvent.ssm.impulse import impulse

AXIS = 0  # channel axis


def covers(node: Node) -> bool:
    match node:
        case GatedAttention(norm=(Norm(kind="layer"),), average=(Filter() as ema,), scale=(), dropout=(), module=own):
            full = ema.module.bidirectional and own.reach.kind == "full" and own.attention == "softmax"
            return full and not (ema.silu or ema.module.check_finite)
    return False


def weights(node: GatedAttention, length: int, dtype: torch.dtype) -> Weights:
    """Weights of the current parameters; differentiable if gradients are enabled."""
    block, ema = node.module, node.average[0].module
    base, value, leave = node.base, node.value, node.leave
    wide = torch.promote_types(dtype, torch.float32)
    past, future = (toeplitz(impulse(b, length).to(wide), dtype) for b in (ema._bank(), ema._bank(back=True)))
    b_u, b_z, b_r, b_h = _bias(base).split([block.d_model, block.z, block.hidden, block.d_model])
    gamma, beta = (torch.stack([t[0] * block.z**-0.5, t[1]]) for t in (block.gamma, block.beta))
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
        gamma=gamma,
        beta=beta,
        line=bias_line(block.bias.table[0], length),
        end=None if node.prenorm else ending(node.norm[0].module),
    )


def _bias(node: Linear) -> Tensor:
    assert node.bias is not None
    return node.bias


def run(node: GatedAttention, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    return gated_block(columns.norm(node.norm, x) if node.prenorm else None, x, w)
