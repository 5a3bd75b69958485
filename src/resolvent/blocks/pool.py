"""From features at every step to one vector: over the whole sequence, or as a running value for streams.

`running` at step t equals `pool` of the sequence truncated after t, so a stream's output is at any time what the
model would return if the sequence ended there.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.layers.checks import padding_mask
from resolvent.layers.contract import at_lengths

PoolKind = Literal["mean", "last", "max", "none"]


def pool(x: Tensor, lengths: Tensor | None, kind: PoolKind) -> Tensor:
    """x (b, l, d) -> (b, d), padding left out; "none" keeps (b, l, d)."""
    if kind != "none" and x.shape[1] == 0:
        raise ValueError("Model: expected at least one step to pool over, got none; drop empty sequences.")
    if kind == "last":
        return at_lengths(x, lengths)
    mask = padding_mask(x, lengths)
    if kind == "max":
        return (x if mask is None else x.masked_fill(mask, -torch.inf)).amax(1)
    if mask is not None:
        x = x.masked_fill(mask, 0)
    if kind == "none":
        return x
    count = x.shape[1] if lengths is None else lengths[:, None]
    return (x.sum(1, dtype=torch.promote_types(x.dtype, torch.float32)) / count).to(x.dtype)


def initial(batch: int, d: int, kind: PoolKind, like: Tensor) -> dict[str, Any]:
    """The running value before the first step."""
    if kind == "mean":
        count = torch.zeros(batch, 1, dtype=torch.int64, device=like.device)
        return {"sum": like.new_zeros(batch, d, dtype=torch.promote_types(like.dtype, torch.float32)), "count": count}
    return {"max": like.new_full((batch, d), -torch.inf)} if kind == "max" else {}


def running(x: Tensor, state: dict[str, Any], kind: PoolKind) -> tuple[Tensor, dict[str, Any]]:
    """x (b, l, d) continues the sequence: the pooled value at each of its steps (b, l, d), and the next state."""
    if kind == "mean":
        total = state["sum"][:, None] + x.cumsum(1, dtype=torch.promote_types(x.dtype, torch.float32))  # (b, l, d)
        count = state["count"] + torch.arange(1, x.shape[1] + 1, device=x.device)  # (b, l)
        return (total / count[..., None]).to(x.dtype), {"sum": total[:, -1], "count": count[:, -1:]}
    if kind == "max":
        best = torch.maximum(x.cummax(1).values, state["max"][:, None])
        return best, {"max": best[:, -1]}
    return x, {}
