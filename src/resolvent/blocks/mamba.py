"""The Mamba block (Gu and Dao 2023, section 3.4): short convolution and S6 on one branch, a gate on the other.

Another layer, such as RG-LRU, may replace S6.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.block import Block, State
from resolvent.blocks.inner import check_inner
from resolvent.layers.checks import check_positive
from resolvent.layers.contract import Layer
from resolvent.layers.s6 import S6
from resolvent.layers.shortconv import ShortConv
from resolvent.layers.untouched import is_untouched
from resolvent.ops.pointwise import conv_silu
from resolvent.runtime.transforms import MATRIX_DEVICES, is_traced, is_untransformed


class Mamba(Block):
    """(x', z) = W_in x;   y = S6(silu(conv(x')));   out = W_out (y * silu(z)).

    The inner width is expand * d_model; `dt_rank` "auto" is ceil(d_model / 16). `bias` gives W_in and W_out biases,
    `conv_bias` the convolution. `ads` (a module on the inner width) scales y before the gate; `ssm` is a causal layer
    of that width in place of S6.

    Examples:
        >>> block = rv.Mamba(4, 8)
        >>> y, state = block(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
    """

    rounds_ends = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        *,
        expand: int = 2,
        width: int = 4,
        dt_rank: int | str = "auto",
        bias: bool = False,
        conv_bias: bool = True,
        ads: nn.Module | None = None,
        ssm: Layer | None = None,
    ) -> None:
        super().__init__(d_model)
        check_positive("Mamba", expand=expand)
        inner = expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias)
        self.conv = ShortConv(inner, width, conv_bias)
        rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.ssm: Layer = S6(inner, d_state, dt_rank=rank) if ssm is None else check_inner("Mamba", ssm, inner)
        self.ads = ads
        self.out_proj = nn.Linear(inner, d_model, bias=bias)

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        pair = self.in_proj(x)  # (b, l, 2e)
        h, z = pair.chunk(2, -1)  # (b, l, e)
        own = self.ssm if self.ads is None and isinstance(self.ssm, S6) and is_untouched(self.ssm, S6) else None
        if own is not None and self._is_quick(h, state, lengths) and not (own.bidirectional or own.check_finite):
            assert self.conv.bias is not None
            y, ssm = own.convolved(pair, self.conv.weight, self.conv.bias)
            return self.out_proj(y), {"conv": self._tail(h), "ssm": ssm}
        h, conv = self._convolve(h, state, lengths)
        if own is not None:
            y, ssm = own.gated(h, z, state.get("ssm"), lengths)
        else:
            y, ssm = self.ssm(h, state.get("ssm"), lengths)
            y = self._gate(y, z)
        return self.out_proj(y), {"conv": conv, "ssm": ssm}

    def _convolve(self, h: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """silu(conv(h)): from the zero state on a GPU one operation reads h in place; otherwise the layer runs."""
        if self._is_quick(h, state, lengths):
            assert self.conv.bias is not None
            return conv_silu(h, self.conv.weight, self.conv.bias), self._tail(h)
        y, end = self.conv(h, state.get("conv"), lengths)
        return F.silu(y), end

    def _is_quick(self, h: Tensor, state: State, lengths: Tensor | None) -> bool:
        """Whether a GPU operation may replace the convolution: from the zero state, and without hooks."""
        conv = self.conv
        at_rest = not state and lengths is None and h.shape[1] >= conv.width
        plain = is_untransformed() and not is_traced(h) and is_untouched(conv, ShortConv)
        return conv.bias is not None and h.device.type in MATRIX_DEVICES and at_rest and plain

    def _tail(self, h: Tensor) -> Tensor:
        return h[:, h.shape[1] - self.conv.width + 1 :].to(self.conv.dtype, copy=True)

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h, z = self.in_proj(x_t).chunk(2, -1)  # (b, e)
        h, conv = self.conv._step(h, state["conv"])
        y, ssm = self.ssm._step(F.silu(h), state["ssm"])
        return self.out_proj(self._gate(y, z)), {"conv": conv, "ssm": ssm}

    def _gate(self, y: Tensor, z: Tensor) -> Tensor:
        return (y if self.ads is None else self.ads(y)) * F.silu(z)
