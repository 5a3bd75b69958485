"""Adaptive scaling (AdS) of a state-space layer's output, from the study of deep SSMs under adversarial training.

    paper      y <- sigma(W y + b) * y
    released   y <- sigma(W1 y + b1) * y + sigma(W2 y + b2)          (`shift=True`)

It is applied after the layer and its skip D u, before channels are mixed.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from resolvent.blocks.activation import activation
from resolvent.usage.numbers import check_choice

AdSKind = Literal["relu", "sigmoid", "tanh"]


class AdS(nn.Module):
    """(..., d) -> (..., d).

    Examples:
        >>> rv.blocks.AdS(4, "sigmoid")(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, kind: AdSKind = "relu", *, shift: bool = False, bias: bool = True) -> None:
        super().__init__()
        check_choice("AdS", "kind", kind, ("relu", "sigmoid", "tanh"))
        self.sigma = activation(kind)
        self.scale = nn.Linear(d_model, d_model, bias=bias)
        self.shift = nn.Linear(d_model, d_model, bias=bias) if shift else None

    def forward(self, y: Tensor) -> Tensor:
        scaled = self.sigma(self.scale(y)) * y
        return scaled if self.shift is None else scaled + self.sigma(self.shift(y))
