"""Pooling over time by levels: for each channel the share of the steps above each of k levels.

    f_ij = (1 / l) sum_t clamp((y_ti - levels_ij) slope_i + 1/2, 0, 1)

A step counts fully from 1 / (2 slope) above the level, not at all from as much below, and in proportion between,
which gives an attack a gradient. With slope -> infinity these are the "proportions of positive values" of ROCKET.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.head import Readout
from resolvent.layers.checks import check_positive, padding_mask


class Levels(nn.Module):
    """How far each step is above each level: (..., d) -> (..., d k), in [0, 1].

    levels (d, k) and slope (d,) are parameters; `set` takes them from data.

    Examples:
        >>> rv.blocks.Levels(4, 8)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 32])
    """

    def __init__(self, d_model: int, k: int) -> None:
        super().__init__()
        check_positive("Levels", d_model=d_model, k=k)
        at = torch.special.ndtri((torch.arange(k, dtype=torch.float64) + 0.5) / k)  # quantiles of a normal channel
        self.levels = nn.Parameter(at.to(torch.get_default_dtype()).repeat(d_model, 1))  # (d, k)
        self.slope = nn.Parameter(torch.ones(d_model))  # (d,)

    @torch.no_grad()
    def set(self, y: Tensor, softness: float, generator: torch.Generator | None = None) -> None:
        """Levels at quantiles of y (m, d), one drawn in each of k equal parts; slopes 1 / (softness * deviation)."""
        k = self.levels.shape[1]
        part = torch.rand(self.levels.shape, dtype=torch.float64, generator=generator) + torch.arange(k)
        at = (part / k * (len(y) - 1)).long().to(y.device)  # (d, k)
        self.levels.copy_(y.sort(0).values.mT.gather(1, at))
        spread = y.std(0, correction=0)
        self.slope.copy_(1 / (softness * torch.where(spread > 0, spread, 1)))

    def forward(self, y: Tensor) -> Tensor:
        return torch.stack(list(self._each(y)), -1).flatten(-2)

    def shares(self, y: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The mean of `forward` over time, (b, l, d) -> (b, d k), without its k-fold memory: one level at a time."""
        mask, count = padding_mask(y, lengths), y.shape[1] if lengths is None else lengths[:, None]
        wide = torch.promote_types(y.dtype, torch.float32)
        each = self._each(y) if mask is None else (above.masked_fill(mask, 0) for above in self._each(y))
        total = torch.stack([above.sum(1, dtype=wide) for above in each], -1)  # (b, d, k)
        return (total.flatten(1) / count).to(y.dtype)

    def _each(self, y: Tensor) -> Iterator[Tensor]:
        scaled = y * self.slope
        for level in self.levels.unbind(1):  # k of (d,)
            yield (scaled + (0.5 - level * self.slope)).clamp_(0, 1)


class LevelReadout(Readout):
    """Shares above levels, then a linear map: (b, l, d) -> (b, outputs).

    Examples:
        >>> rv.blocks.LevelReadout(4, 3, k=8)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, d_model: int, outputs: int, k: int = 8, *, bias: bool = True) -> None:
        super().__init__(d_model * k, outputs, "mean", bias=bias)
        self.levels = Levels(d_model, k)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        if features.shape[1] == 0:
            raise ValueError("Model: expected at least one step to pool over, got none; drop empty sequences.")
        return self.out(self.levels.shares(features, lengths))

    def stream(self, features: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        return super().stream(self.levels(features), state)
