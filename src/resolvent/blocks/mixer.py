"""What follows the sequence layer at every time step: activation, then a pointwise map that mixes channels.

g = activation(y) throughout; the products are elementwise.

    none        g
    linear      W g + b
    glu         (W1 g + b1) * sigmoid(W2 g + b2)          S4's output; S5's full_glu and LRU's with the tanh GELU
    half_glu1   g * sigmoid(W g + b)                      S5
    half_glu2   y * sigmoid(W g + b)                      S5
    mlp         W2 act(W1 g + b1) + b2, `expand` times wider inside
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from resolvent.blocks.activation import Activation, activation
from resolvent.layers.checks import check_positive
from resolvent.usage.numbers import check_choice

MixerKind = Literal["none", "linear", "glu", "full_glu", "half_glu1", "half_glu2", "gelu", "mlp"]
KINDS: tuple[MixerKind, ...] = ("none", "linear", "glu", "full_glu", "half_glu1", "half_glu2", "gelu", "mlp")


class Mixer(nn.Module):
    """(..., d) -> (..., d) as in the table above, with dropout between activation and map.

    `final` is a second activation after the map (seed tables that print Linear, GELU). "full_glu" and "gelu" are S5's
    names for "glu" and "none".

    Examples:
        >>> rv.blocks.Mixer(4, "glu")(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self,
        d_model: int,
        kind: MixerKind = "glu",
        *,
        act: Activation = "gelu",
        final: Activation = "none",
        dropout: float = 0.0,
        expand: int = 4,
    ) -> None:
        super().__init__()
        check_choice("Mixer", "kind", kind, KINDS)
        check_positive("Mixer", d_model=d_model, expand=expand)
        self.kind = {"full_glu": "glu", "gelu": "none"}.get(kind, kind)
        self.act = activation(act)
        self.final = activation(final)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(d_model, self._width(d_model, expand)) if self.kind != "none" else None
        self.down = nn.Linear(expand * d_model, d_model) if self.kind == "mlp" else None

    def _width(self, d_model: int, expand: int) -> int:
        return {"glu": 2 * d_model, "mlp": expand * d_model}.get(self.kind, d_model)

    def forward(self, y: Tensor) -> Tensor:
        g = self.act(y)
        if self.linear is None:  # the residual block's own dropout follows immediately
            return g
        g = self.dropout(g)
        return self.final(self._map(y, g, self.linear(g)))

    def _map(self, y: Tensor, g: Tensor, w: Tensor) -> Tensor:
        if self.kind == "glu":
            value, gate = w.chunk(2, -1)
            return value * torch.sigmoid(gate)
        if self.down is not None:
            return self.down(self.act(w))
        if self.kind == "linear":
            return w
        return (g if self.kind == "half_glu1" else y) * torch.sigmoid(w)


class MLP(nn.Module):
    """W2 act(W1 x + b1) + b2: the feed-forward part of Mega and H3.

    Examples:
        >>> rv.blocks.MLP(4, 16)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, width: int, *, act: Activation = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        check_positive("MLP", d_model=d_model, width=width)
        self.up = nn.Linear(d_model, width)
        self.act = activation(act)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(width, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.act(self.up(x))))


class GatedMLP(nn.Module):
    """W (gelu(U1 x) * U2 x): the feed-forward part of Hawk and Griffin.

    Examples:
        >>> rv.blocks.GatedMLP(4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, expand: int = 3) -> None:
        super().__init__()
        check_positive("GatedMLP", d_model=d_model, expand=expand)
        self.up = nn.Linear(d_model, 2 * expand * d_model)
        self.down = nn.Linear(expand * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(nn.functional.gelu(gate, approximate="tanh") * value)
