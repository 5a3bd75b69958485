"""S5, Mamba and Mega written out in torch's own operations, with the parameters of one of our blocks; see `eager`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.eager_scans import selective_loop, tree_scan
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.layers import EMA, S5

Scan = Callable[..., Any]


def convolved(u: Tensor, k: Tensor) -> Tensor:
    """u (b, d, l) with k (d, l), causal, by FFT."""
    l = u.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(u, 2 * l) * torch.fft.rfft(k, 2 * l), 2 * l)[..., :l]


def s5(layer: S5, u: Tensor, scan: Scan | None) -> Tensor:
    """h = scan(lam_bar, B_bar u), y = 2 Re(C h) + D u in complex numbers; conjugate halves, zero-order hold."""
    lam = torch.complex(layer.lam[:, 0].clamp_max(-1e-4), layer.lam[:, 1])  # (p,)
    z = layer.log_step.exp() * lam
    B_bar = (torch.expm1(z) / lam)[:, None] * torch.view_as_complex(layer.B)  # (p, d)
    v = u.to(B_bar.dtype) @ B_bar.mT  # (b, l, p)
    h = (scan or tree_scan)(torch.exp(z).expand(v.shape), v)
    return 2 * (h @ torch.view_as_complex(layer.C).mT).real + layer.D * u


def mamba(block: Mamba, x: Tensor, scan: Scan | None) -> Tensor:
    """Maps, four taps, selection, scan with skip and gate, map."""
    ssm, conv = block.ssm, block.conv
    h, z = block.in_proj(x).chunk(2, -1)  # (b, l, e)
    taps = F.conv1d(h.mT, conv.weight[:, None], conv.bias, padding=conv.width - 1, groups=h.shape[-1])
    u = F.silu(taps[..., : x.shape[1]].mT)
    s, B, C = F.linear(u, ssm.x_proj).split([ssm.dt_rank, ssm.d_state, ssm.d_state], -1)
    dt = F.softplus(F.linear(s, ssm.dt_proj, ssm.dt_bias)).to(u.dtype)
    y = (scan or selective_loop)(u, dt, -torch.exp(ssm.A_log), B, C, ssm.D, z)
    return block.out_proj(y[0] if isinstance(y, tuple) else y)


def mega(block: GatedAttention, x: Tensor) -> Tensor:
    """Ma et al. 2023, eq. 7 to 15, moving averages in both directions, torch's attention under the relative bias."""
    base = block.base(F.silu(_averages(block.ema, x)))
    u, z, r, hx = base.split([block.d_model, block.z, block.hidden, block.d_model], -1)
    q, k = (F.silu(z)[..., None, :] * block.gamma + block.beta).unbind(-2)
    v, at = F.silu(block.value(x)), torch.arange(x.shape[1], device=x.device)
    bias = block.bias.table[0, at[:, None] - at + block.bias.size - 1]  # (l, l)
    o = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=bias.to(q.dtype))[:, 0]
    new = F.silu(hx + block.leave(F.silu(r) * o))
    norm: Any = block.norm
    y = x + torch.sigmoid(u) * (new - x)
    return F.layer_norm(y, y.shape[-1:], norm.weight, norm.bias, norm.eps)


def _averages(ema: EMA, x: Tensor) -> Tensor:
    u, l = x.mT, x.shape[1]  # (b, d, l)
    p, delta = torch.sigmoid(ema.alpha), torch.sigmoid(ema.damping)  # (2, d, n)
    powers = torch.exp(torch.log1p(-p * delta)[..., None] * torch.arange(l, device=x.device))  # (2, d, n, l)
    past, future = ((p * ema.beta * ema.eta / math.sqrt(ema.d_state))[..., None] * powers).sum(-2)
    return (convolved(u, past) + convolved(u.flip(-1), future).flip(-1) + ema.omega[:, None] * u).mT
