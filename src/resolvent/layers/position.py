"""How attention knows positions: rotary angles on queries and keys, or a learned bias for each distance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.layers import checks
from resolvent.runtime.chip import lacks_float64


def rotate(x: Tensor, at: Tensor, dims: int, wavelength: float = 10_000.0) -> Tensor:
    """Rotary encoding of the first `dims` (even) entries of x (b, h, l, e) at positions `at` (b, l).

    Entry m and entry m + dims / 2 turn together by the angle at * wavelength^(-2 m / dims): a product of a query and a
    key then depends on their distance alone. Angles are taken in float64: in float32 position 100,000 is off by 1e-2.
    """
    half = dims // 2
    precise = torch.float32 if lacks_float64(x.device) else torch.float64
    rate = wavelength ** (-torch.arange(half, dtype=precise, device=x.device) / half)  # (dims / 2,)
    angle = (at.to(precise)[..., None] * rate)[:, None]  # (b, 1, l, dims / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x.split([half, half, x.shape[-1] - dims], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class RelativeBias(nn.Module):
    """Mega's simple relative bias: one number per head and distance below `size`; farther ones share the last.

    A causal bias has `size` numbers per head, the other 2 size - 1. They start normal with std .02.
    """

    def __init__(self, size: int, heads: int = 1, *, causal: bool = True) -> None:
        super().__init__()
        checks.check_positive("RelativeBias", size=size, heads=heads)
        self.size, self.causal = size, causal
        self.table = nn.Parameter(torch.randn(heads, size if causal else 2 * size - 1) * 0.02)  # (h, distances)

    def forward(self, distance: Tensor) -> Tensor:
        """distance (i, j), query minus key -> bias (h, i, j); a causal table answers anything for the future."""
        far = self.size - 1
        index = distance.clamp(0, far) if self.causal else distance.clamp(-far, far) + far
        return self.table[:, index]
