"""The reference for `linear_scan`: the recurrence as written, step by step, in the given dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t along axis -2, from h_{-1} = h0 (zero when None).

    a broadcasts to b (..., l, n); h0 is (..., n). `reverse` runs from the last step to the first. Made of plain torch
    operations only, so that autograd gives the reference gradient as well.
    """
    l = b.shape[-2]
    a = a.expand(b.shape)  # (..., l, n)
    h: list[Tensor] = [b] * l
    before = h0
    for t in reversed(range(l)) if reverse else range(l):
        h[t] = b[..., t, :] if before is None else a[..., t, :] * before + b[..., t, :]
        before = h[t]
    return torch.stack(h, -2) if l else b.clone()  # (..., l, n)
