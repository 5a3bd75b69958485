"""A residual block around Mamba with channels last, (b, l, d), as the selective scan wants it, in one low dtype.

    h = W_h x,    z = W_z x,    u = silu(taps * h),    s, B, C = W_x u,    dt = softplus(W_dt s + b_dt)
    out = W_out scan(u, dt, A, B, C, D, z)

The map in is kept in two halves: the gradient of one product of both would be a copy of theirs side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.conv_silu import conv_silu
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.norm import LayerNorm
from resolvent.blocks.residual import Residual
from resolvent.blocks.skip_norm import Ending, ending, skip_norm
from resolvent.scan import selective_scan

AXIS = -1  # of the channels


class Weights(NamedTuple):
    W_h: Tensor  # (e, d)
    W_z: Tensor  # (e, d)
    taps: Tensor  # (e, w)
    bias: Tensor  # (e,)
    W_x: Tensor  # (r + 2n, e)
    W_dt: Tensor  # (e, r)
    b_dt: Tensor  # (e,)
    A: Tensor  # (e, n)
    D: Tensor  # (e,)
    W_out: Tensor  # (d, e)
    end: Ending


def covers(block: nn.Module) -> bool:
    if not (isinstance(block, Residual) and isinstance(block.layer, Mamba) and isinstance(block.norm, LayerNorm)):
        return False
    plain = isinstance(block.ads, nn.Identity) and isinstance(block.mixer, nn.Identity) and block.skip
    inside = block.layer
    dropped = block.training and block.dropout.p > 0
    checked = any(getattr(m, "check_finite", False) for m in (inside, inside.conv, inside.ssm))
    return plain and inside.ads is None and inside.conv.bias is not None and not (dropped or checked)


def weights(block: Residual, length: int, dtype: torch.dtype) -> Weights:
    """From the parameters as they are; differentiable where gradients are on."""
    mamba, norm = block.layer, block.norm
    assert isinstance(mamba, Mamba)
    assert isinstance(norm, LayerNorm)
    ssm, taps, bias = mamba.ssm, mamba.conv.weight, mamba.conv.bias
    assert bias is not None
    low = [t.to(dtype) for t in (mamba.in_proj.weight, ssm.x_proj, ssm.dt_proj, ssm.dt_bias, mamba.out_proj.weight)]
    W_in, W_x, W_dt, b_dt, W_out = low
    W_h, W_z = W_in.chunk(2)
    return Weights(W_h, W_z, taps, bias, W_x, W_dt, b_dt, ssm._A(), ssm.D, W_out, ending(norm))


def run(block: Residual, x: Tensor, w: Weights) -> Tensor:
    """(b, l, d) -> (b, l, d)."""
    if block.prenorm:
        gamma, beta = w.end.gamma.to(x.dtype), w.end.beta.to(x.dtype)
        return x + _mamba(F.layer_norm(x, x.shape[-1:], gamma, beta, w.end.eps), w)
    return skip_norm(x, _mamba(x, w), w.end, AXIS)


def _mamba(x: Tensor, w: Weights) -> Tensor:
    h, z = F.linear(x, w.W_h), F.linear(x, w.W_z)  # (b, l, e)
    u = conv_silu(h, w.taps, w.bias)
    n, r = w.A.shape[1], w.W_dt.shape[1]
    s, B, C = F.linear(u, w.W_x).split([r, n, n], -1)
    dt = torch.addmm(w.b_dt, s.reshape(-1, r), w.W_dt.t()).view_as(u)
    y, _ = selective_scan(u, F.softplus(dt), w.A, B, C, w.D, z)
    return F.linear(y, w.W_out)
