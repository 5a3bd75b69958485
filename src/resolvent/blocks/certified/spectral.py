"""A linear map of limited spectral norm: the encoder and decoder of a model with a prescribed gain."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.checks import check_positive
from resolvent.layers.freezing import Freezable
from resolvent.runtime.transforms import wide
from resolvent.ssm.contraction import cap_norm, rounding_margin, spectral_norm


class Spectral(Freezable):
    """W x + b with |W| <= `largest` for any weight: W = weight / max(1, |weight| / largest).

    The norm in the division is `norm_bound`, a smooth upper bound; `gain()` is the exact norm of W as used. The weight
    is initialised orthonormal, scaled to `largest`. A bias keeps the Lipschitz constant but has no bounded gain.

    Examples:
        >>> layer = rv.blocks.Spectral(4, 4, largest=0.5)
        >>> bool(layer(torch.ones(1, 4)).norm() <= 0.5 * 2 * 1.001)
        True
    """

    def __init__(self, d_in: int, d_out: int, *, largest: float = 1.0, bias: bool = False) -> None:
        super().__init__()
        check_positive("Spectral", d_in=d_in, d_out=d_out)
        if not 0 < largest < float("inf"):
            raise ValueError(f"Spectral: largest, the cap of the norm, must be positive and finite, got {largest}.")
        self.in_features, self.out_features, self.largest = d_in, d_out, float(largest)
        start = nn.init.orthogonal_(torch.empty(d_out, d_in, dtype=torch.float64)) * largest
        self.weight = nn.Parameter(start.to(torch.get_default_dtype()))  # (d_out, d_in)
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def matrix(self) -> Tensor:
        """W (d_out, d_in) as the forward pass uses it."""
        found: Tensor = self.cached("matrix", self._matrix)
        return found

    def _matrix(self) -> Tensor:
        keep = rounding_margin(max(self.weight.shape))
        return (keep * cap_norm(wide(self.weight), self.largest)).to(self.weight.dtype)

    def gain(self) -> float:
        return spectral_norm(self.matrix())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix(), self.bias)
