"""Heads: pooled features to logits or values, and matching of two documents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.pool import PoolKind, initial, pool, running
from resolvent.blocks.projection import Projection
from resolvent.layers.checks import padding_mask


class Readout(nn.Module):
    """Pool over time, then a linear map (after one GELU layer when `hidden` > 0) to `outputs` numbers.

    `out` replaces the final linear map.
    """

    def __init__(
        self,
        d_model: int,
        outputs: int,
        pooling: PoolKind = "mean",
        *,
        hidden: int = 0,
        bias: bool = True,
        std: float | None = None,
        out: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.pooling: PoolKind = pooling
        self.hidden = nn.Sequential(nn.Linear(d_model, hidden), nn.GELU()) if hidden else nn.Identity()
        width = hidden or d_model
        if out is None:
            out = nn.Linear(width, outputs, bias) if std is None else Projection(width, outputs, std=std, bias=bias)
        self.out: Any = out

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b, l, d) -> (b, outputs), or (b, l, outputs) with pooling "none" (zero beyond `lengths`)."""
        y = self.out(self.hidden(pool(features, lengths, self.pooling)))
        mask = padding_mask(features, lengths) if self.pooling == "none" else None
        return y if mask is None else y.masked_fill(mask, 0)

    def initial_state(self, batch: int, like: Tensor) -> dict[str, Any]:
        return initial(batch, self.d_model, self.pooling, like)

    def stream(self, features: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The output at each step: (b, l, d) -> (b, l, outputs)."""
        pooled, state = running(features, state, self.pooling)
        return self.out(self.hidden(pooled)), state


class Match(nn.Module):
    """[e1, e2, e1 * e2, e1 - e2] -> one hidden GELU layer -> logits: the Long Range Arena's retrieval head."""

    def __init__(self, d_model: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(4 * d_model, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, e1: Tensor, e2: Tensor) -> Tensor:
        return self.out(nn.functional.gelu(self.hidden(torch.cat([e1, e2, e1 * e2, e1 - e2], -1))))
