"""A linear map whose published initialisation survives an outer `model.apply(init)` that matches nn.Linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Module):
    """W x + b with W normal of the given standard deviation (1/sqrt(d_in) when None) and b zero.

    Examples:
        >>> rv.blocks.Projection(4, 8)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 8])
    """

    def __init__(self, d_in: int, d_out: int, *, std: float | None = None, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) * (d_in**-0.5 if std is None else std))  # (d_out, d_in)
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
