"""The scans as a careful reader of the papers writes them first, in torch's own operations; no code of ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def tree_scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t along axis 1, by doubling: after k rounds an entry holds its last 2^k steps."""
    a, h = a.expand(b.shape), b
    step = 1
    while step < b.shape[1]:
        h = torch.cat([h[:, :step], h[:, step:] + a[:, step:] * h[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return h


def selective_loop(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = (C_t . h_t + D u_t) silu(z_t) in float32, and the last state."""
    u, dt, B, C, z = (t.to(A.dtype) for t in (u, dt, B, C, z))
    h = torch.zeros(u.shape[0], *A.shape, dtype=A.dtype, device=A.device)  # (b, d, n)
    ys = []
    for u_t, dt_t, B_t, C_t in zip(u.unbind(1), dt.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        h = torch.exp(dt_t[..., None] * A) * h + (dt_t * u_t)[..., None] * B_t[:, None]
        ys.append((h @ C_t[..., None])[..., 0])
    return (torch.stack(ys, 1) + D * u) * F.silu(z), h
