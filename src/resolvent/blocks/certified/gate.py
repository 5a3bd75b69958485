"""A gate that is Lipschitz: tanh(A x) * sigmoid(B x).

The GLU a * sigmoid(b) has a gain of at most |W| without biases, but no Lipschitz constant: its slope a sigmoid'(b) in b
grows with a. Here tanh bounds that factor by one, and the slope by |A| + |B| / 4.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.checks import check_positive
from resolvent.layers.freezing import Freezable
from resolvent.runtime.transforms import wide
from resolvent.ssm.contraction import norm_bound, rounding_margin, spectral_norm
from resolvent.ssm.rounding import POINTWISE, Allowance, Rounding, count, size


class Gate(Freezable):
    """(..., d_in) -> (..., d_out), 1-Lipschitz for any weights: both are divided by max(1, |A| + |B| / 4).

    It maps zero to zero, so one is its gain too.

    Examples:
        >>> rv.blocks.Gate(4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_in: int, d_out: int | None = None) -> None:
        super().__init__()
        d_out = d_in if d_out is None else d_out
        check_positive("Gate", d_in=d_in, d_out=d_out)
        self.A = nn.Parameter(torch.randn(d_out, d_in) / math.sqrt(d_in))
        self.B = nn.Parameter(torch.randn(d_out, d_in) / math.sqrt(d_in))

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A and B (d_out, d_in) as the forward pass uses them."""
        found: tuple[Tensor, Tensor] = self.cached("matrices", self._matrices)
        return found

    def _matrices(self) -> tuple[Tensor, Tensor]:
        A, B = wide(self.A), wide(self.B)
        scale = rounding_margin(sum(A.shape)) / (norm_bound(A) + norm_bound(B) / 4).clamp_min(1.0)
        return (scale * A).to(self.A.dtype), (scale * B).to(self.B.dtype)

    def gain(self) -> float:
        A, B = self.matrices()
        return spectral_norm(A) + spectral_norm(B) / 4

    def rounding(self) -> Allowance:
        """Rounding of both products and of their functions: |tanh(a)| <= |a|, and the sigmoid's slope is below one."""
        A, B = self.matrices()
        found = Rounding((count(A.shape[1]) + 2 * POINTWISE) * (size(A) + size(B)))
        return lambda steps: found

    def forward(self, x: Tensor) -> Tensor:
        A, B = self.matrices()
        return torch.tanh(F.linear(x, A)) * torch.sigmoid(F.linear(x, B))
