"""The selective scan as a loop: short, slow, in the given dtype. The reference for every other implementation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.selective_scan.inputs import Inputs


def selective_reference(x: Inputs, reverse: bool = False, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = (C_t . h_t + D u_t) silu(z_t). Mamba (Gu and Dao 2023), eq. 2.

    Returns y (b, l, d) and the last state (b, d, n); `reverse` runs from the last step to the first. Before steps with
    `reset` (b, l) the state is reset.
    """
    b, l, d = x.u.shape
    h = x.u.new_zeros(b, d, x.A.shape[1]) if x.h0 is None else x.h0  # (b, d, n)
    y = [x.u.new_zeros(b, d)] * l
    for t in reversed(range(l)) if reverse else range(l):
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0, h)
        a_bar = torch.exp(x.dt[:, t, :, None] * x.A)  # (b, d, n)
        h = a_bar * h + (x.dt[:, t] * x.u[:, t])[..., None] * x.B[:, t, None, :]
        y[t] = (h * x.C[:, t, None, :]).sum(-1)  # (b, d)
        if x.D is not None:
            y[t] = y[t] + x.D * x.u[:, t]
        if x.z is not None:
            y[t] = y[t] * F.silu(x.z[:, t])
    return (torch.stack(y, dim=1) if l else torch.zeros_like(x.u)), h
