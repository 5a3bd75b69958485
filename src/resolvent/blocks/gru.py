"""GRU: torch's gated recurrent unit under the layers' contract, a baseline for the state-space layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.contract import Layer, Spec, at_lengths
from resolvent.layers.shortconv import ShortConv
from resolvent.runtime.transforms import is_exporting


class GRU(Layer):
    """r, z = sigmoid(W x_t + U h),  c = tanh(W_c x_t + r (U_c h)),  y_t = h' = (1 - z) c + z h;  state "h" (b, d).

    With `width` > 1 the unit reads SiLU of a causal convolution of `width` taps, as the recurrences of Mamba and Hawk
    do; its state "conv" is the last width - 1 inputs.

    Examples:
        >>> rv.blocks.GRU(4)(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, width: int = 1, *, check_finite: bool = False) -> None:
        super().__init__(d_model, check_finite=check_finite)
        self.conv = ShortConv(d_model, width) if width > 1 else None
        self.unit = nn.GRU(d_model, d_model, batch_first=True)

    def state_spec(self, batch: int) -> dict[str, Spec]:
        own = {"h": Spec((batch, self.d_model), self.dtype)}
        if self.conv is not None:
            own["conv"] = Spec((batch, self.conv.width - 1, self.d_model), self.dtype)
        return own

    def _sequence(
        self, x: Tensor, state: dict[str, Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if is_exporting() and isinstance(x.shape[1], torch.SymInt):
            raise ValueError(
                "GRU: torch.export writes torch.nn.GRU out step by step, so its length cannot be left open; export it "
                "with a fixed length, or use `resolvent export`, whose recurrence is open."
            )
        end = {}
        if self.conv is not None:
            x, end["conv"] = self.conv(x, state["conv"], lengths)
            x = F.silu(x)
        y, _ = self.unit(x.contiguous(), state["h"][None].contiguous())
        return y, end | {"h": at_lengths(y, lengths).clone()}  # the output is the state, and may be changed in place

    def _step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, end = self._sequence(x_t[:, None], state, None)
        return y[:, 0], end

    def optim_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters())}]
