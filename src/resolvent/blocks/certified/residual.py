"""The residual block of a model with a prescribed gain, scaled to be 1-Lipschitz.

The stack y_i = y_{i-1} + sigma_i(g_i(y_{i-1})), y = H y_r, with |g_i| <= gamma_i and 1-Lipschitz sigma_i, has a
Lipschitz constant of at most |E| |H| prod_i (1 + gamma_i). Dividing each block by its own 1 + gamma_i makes the product
telescope: every block is 1-Lipschitz for any gamma_i, and |H| alone sets the gain of the model.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from resolvent.blocks.activation import activation
from resolvent.blocks.block import Block, State
from resolvent.blocks.certified.gate import Gate
from resolvent.blocks.certified.normalised import NormalisedLRU
from resolvent.blocks.certified.sandwich import Sandwich
from resolvent.layers.l2ru.layer import L2RU
from resolvent.usage.numbers import check_choice

Sigma = Literal["none", "relu", "tanh", "gate", "sandwich"]
ROUNDED_DOWN = 1 - torch.finfo(torch.float32).eps
SIGMAS: tuple[Sigma, ...] = ("none", "relu", "tanh", "gate", "sandwich")


def make_sigma(kind: Sigma, d_model: int, *, bias: bool = True) -> nn.Module:
    """A 1-Lipschitz map (..., d) -> (..., d); `bias` applies to the sandwich."""
    check_choice("make_sigma", "kind", kind, SIGMAS)
    if kind == "gate":
        return Gate(d_model)
    if kind == "sandwich":
        return Sandwich(d_model, d_model, bias=bias)
    plain: Any = kind
    return activation(plain)


class LipschitzResidual(Block):
    """y = (x + sigma(g(x))) / (1 + gamma), g of gain gamma (L2RU, or a normalised LRU): 1-Lipschitz for any weights.

    Without biases in sigma it maps zero to zero, and therefore also has gain at most one.

    Examples:
        >>> block = rv.blocks.LipschitzResidual(rv.L2RU(4, gamma=0.5))
        >>> block(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, layer: L2RU | NormalisedLRU, sigma: Sigma = "sandwich", *, bias: bool = True) -> None:
        super().__init__(layer.d_model)
        self.layer = layer
        self.kind = sigma
        self.sigma = make_sigma(sigma, layer.d_model, bias=bias)

    def share(self) -> Tensor:
        """1 / (1 + gamma) in the layer's dtype, rounded down."""
        found: Tensor = self.cached("share", lambda: (ROUNDED_DOWN / (1 + self.layer.gamma)).to(self.dtype))
        return found

    def gain(self) -> float:
        """(1 + gamma |sigma|) / (1 + gamma), at most 1."""
        sigma = self.sigma.gain() if isinstance(self.sigma, Gate | Sandwich) else 1.0
        return (1 + self.layer.gain() * sigma) * float(self.share().detach())

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h, end = self.layer(x, state.get("layer"), lengths)
        return self._join(x, h), {"layer": end}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h, end = self.layer._step(x_t, state["layer"])
        return self._join(x_t, h), {"layer": end}

    def _join(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.mul(x + self.sigma(h), self.share())
