"""The Mamba block (Gu and Dao 2023, section 3.4): short convolution and S6 on one branch, a gate on the other."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.block import Block, State, hooked
from resolvent.layers.border import check_positive
from resolvent.layers.s6 import S6
from resolvent.layers.shortconv import ShortConv


class Mamba(Block):
    """(x', z) = W_in x;   y = S6(silu(conv(x')));   out = W_out (y * silu(z)).

    The inner width is expand * d_model, the rank of dt ceil(d_model / 16). `ads` (a module on the inner width) scales y
    before the gate.
    """

    def __init__(
        self, d_model: int, d_state: int = 16, *, expand: int = 2, width: int = 4, ads: nn.Module | None = None
    ) -> None:
        super().__init__(d_model)
        check_positive("Mamba", expand=expand)
        inner = expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv = ShortConv(inner, width)
        self.ssm = S6(inner, d_state, dt_rank=math.ceil(d_model / 16))
        self.ads = ads
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h, z = self.in_proj(x).chunk(2, -1)  # (b, l, e)
        h, conv = self.conv(h, state.get("conv"), lengths)
        h = F.silu(h)
        if self.ads is None and not hooked(self.ssm):
            y, ssm = self.ssm.gated(h, z, state.get("ssm"), lengths)
        else:
            y, ssm = self.ssm(h, state.get("ssm"), lengths)
            y = self._gated(y, z)
        return self.out_proj(y), {"conv": conv, "ssm": ssm}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h, z = self.in_proj(x_t).chunk(2, -1)  # (b, e)
        h, conv = self.conv._step(h, state["conv"])
        y, ssm = self.ssm._step(F.silu(h), state["ssm"])
        return self.out_proj(self._gated(y, z)), {"conv": conv, "ssm": ssm}

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        return (y if self.ads is None else self.ads(y)) * F.silu(z)
