"""A residual block around Mamba with channels last, (b, l, d), as the selective scan needs it, in one low dtype.

h, z = W_in x,    u = silu(taps * h),    s, B, C = W_x u,    dt = softplus(W_dt s + b_dt)
out = W_out scan(u, dt, A, B, C, D, z)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.lowering.program import Activation, Filter, Linear, Node, Norm, Recurrence, Scale, Skip
from resolvent.ops.pointwise import Ending, ending, skip_norm
from resolvent.ops.selective_scan import Given, selected_scan

AXIS = -1  # channel axis


class Weights(NamedTuple):
    W_in: Tensor  # (2e, d)
    taps: Tensor  # (e, w)
    bias: Tensor  # (e,)
    W_x: Tensor  # (r + 2n, e)
    W_dt: Tensor  # (e, r)
    b_dt: Tensor  # (e,)
    A: Tensor  # (e, n)
    D: Tensor  # (e,)
    W_out: Tensor  # (d, e)
    end: Ending


def covers(node: Node) -> bool:
    match node:
        case Skip(norm=(Norm(kind="layer"),), layer=(Scale() as mamba,), scale=(), mixer=(), dropout=(), adds=True):
            pass
        case _:
            return False
    match mamba:
        case Scale(
            of=(
                Linear(whole=Linear(bias=None)),
                Filter(kind="shortconv", module=conv),
                Activation(kind="silu"),
                Recurrence(kind="s6", module=ssm),
            ),
            by=(Linear(whole=Linear()), Activation(kind="silu")),
            then=(Linear(bias=None),),
        ):
            checked = any(layer.check_finite for layer in (mamba.module, conv, ssm))
            return conv.bias is not None and not (checked or conv.bidirectional or ssm.bidirectional)
    return False


def weights(block: Skip, length: int, dtype: torch.dtype) -> Weights:
    """Weights of the current parameters; differentiable if gradients are enabled."""
    (mamba,) = block.layer
    assert isinstance(mamba, Scale)
    (half, conv, _, scan), (out,) = mamba.of, mamba.then
    assert isinstance(half, Linear)
    assert isinstance(out, Linear)
    assert half.whole is not None
    ssm, taps, bias = scan.module, conv.module.weight, conv.module.bias
    low = [t.to(dtype) for t in (half.whole.weight, ssm.x_proj, ssm.dt_proj, out.weight)]
    W_in, W_x, W_dt, W_out = low
    return Weights(W_in, taps, bias, W_x, W_dt, ssm.dt_bias, ssm._A(), ssm.D, W_out, ending(block.norm[0].module))


def run(block: Skip, x: Tensor, w: Weights) -> Tensor:
    """(b, l, d) -> (b, l, d)."""
    if block.prenorm:
        gamma, beta = w.end.gamma.to(x.dtype), w.end.beta.to(x.dtype)
        return x + _mamba(F.layer_norm(x, x.shape[-1:], gamma, beta, w.end.eps), w)
    return skip_norm(x, _mamba(x, w), w.end, AXIS)


def _mamba(x: Tensor, w: Weights) -> Tensor:
    given = Given(F.linear(x, w.W_in), None, w.taps, w.bias, w.W_x, w.W_dt, w.b_dt, w.A, w.D)
    return F.linear(selected_scan(given, x.dtype, often=True)[0], w.W_out)
