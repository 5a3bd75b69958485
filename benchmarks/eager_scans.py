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


def gated_tree(p: Tensor, q: Tensor, x: Tensor, rate: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) sigmoid(q_t) x_t with log a = rate sigmoid(p), in float32."""
    p, q, x = (t.to(rate.dtype) for t in (p, q, x))
    log_a = rate * torch.sigmoid(p)
    drive = torch.sqrt(-torch.expm1(2 * log_a)) * torch.sigmoid(q) * x
    return tree_scan(torch.exp(log_a), drive)


def projected_tree(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> Tensor:
    """W_out h for h_t = lam h_{t-1} + W_in x_t, pairs of rows as complex numbers in float32: x, y (d, b, l)."""
    pairs = (W_in @ x.flatten(1)).to(lam.dtype).view(-1, 2, *x.shape[1:])  # (p, 2, b, l)
    v = torch.complex(pairs[:, 0], pairs[:, 1]).permute(1, 2, 0)  # (b, l, p)
    h = torch.view_as_real(tree_scan(torch.view_as_complex(lam), v)).permute(2, 3, 0, 1)  # (p, 2, b, l)
    return (W_out @ h.to(x.dtype).reshape(W_out.shape[1], -1)).view(-1, *x.shape[1:])
