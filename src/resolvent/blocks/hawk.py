"""The recurrent block of Hawk and Griffin (De et al. 2024, section 2): short convolution, RG-LRU and a gate.

Griffin's other temporal block is local multi-query attention: `layers.Attention`.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.block import Block, State
from resolvent.blocks.projection import Projection
from resolvent.layers.rglru import RGLRU
from resolvent.layers.shortconv import ShortConv


class Hawk(Block):
    """g = gelu(W_y x);   r = RGLRU(conv(W_x x));   out = W_o (g * r), on `inner` channels (d_model when None).

    `ads` (a module on the inner width) scales r before the gate.

    Examples:
        >>> rv.blocks.Hawk(4)(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self, d_model: int, *, inner: int | None = None, heads: int = 1, width: int = 4, ads: nn.Module | None = None
    ) -> None:
        super().__init__(d_model)
        e = d_model if inner is None else inner
        self.gate = Projection(d_model, e)
        self.enter = Projection(d_model, e)
        self.conv = ShortConv(e, width, std=math.sqrt(0.01 / width))
        self.rglru = RGLRU(e, heads)
        self.ads = ads or nn.Identity()
        self.leave = Projection(e, d_model)

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h, conv = self.conv(self.enter(x), state.get("conv"), lengths)
        r, rglru = self.rglru(h, state.get("rglru"), lengths)
        return self._gate(x, r), {"conv": conv, "rglru": rglru}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h, conv = self.conv._step(self.enter(x_t), state["conv"])
        r, rglru = self.rglru._step(h, state["rglru"])
        return self._gate(x_t, r), {"conv": conv, "rglru": rglru}

    def _gate(self, x: Tensor, r: Tensor) -> Tensor:
        return self.leave(F.gelu(self.gate(x), approximate="tanh") * self.ads(r))
