"""Shared by the selective layers: one step of the recurrence and its time-varying system.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,    y_t = C_t . h_t + D u_t      (Mamba: exact for A, Euler for B)

A (d, n) is real and diagonal, B_t and C_t (b, n) are shared by the channels, dt_t (b, d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ssm.system import Diagonal, System


def selective_step(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step for u (b, d), dt (b, d) or (b, 1), B, C (b, n), h (b, d, n): y (b, d) without D u, and the new h."""
    decay = torch.exp(dt[..., None] * A)  # (b, d, n)
    h = torch.addcmul((dt * u)[..., None] * B[:, None, :], decay, h)
    return (h @ C[..., None])[..., 0], h


def selective_system(dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> System:
    """The recurrence along one input: dt (b, l, d), A (d, n), B, C (b, l, n), D (d,) -> a System, bank (b, d)."""
    b, l, d = dt.shape
    step = dt.mT[..., None]  # (b, d, l, 1)
    lam = torch.exp(step * A[:, None, :])  # (b, d, l, n)
    B_bar = step * B[:, None]  # (b, d, l, n)
    C_all = C[:, None].expand_as(B_bar)
    D_all = D[:, None, None, None].expand(b, d, l, 1, 1)
    return System(Diagonal(lam), B_bar[..., None], C_all[..., None, :], D_all, dt=1.0, time_varying=True)


def hold_padding(dt: Tensor, lengths: Tensor | None) -> Tensor:
    """dt (b, l, ...) with zeros beyond `lengths`: a step with dt = 0 keeps the state."""
    if lengths is None:
        return dt
    padding = torch.arange(dt.shape[1], device=dt.device) >= lengths[:, None]  # (b, l)
    return dt.masked_fill(padding[..., None], 0)
