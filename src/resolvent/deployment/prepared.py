"""Preprocessing inside an exported model: scale, gaps, flags, as `Preprocess` does them, in plain operations.

A gap refused in training stays NaN, as does the output: a graph cannot raise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.data.preparation.preprocess import Preprocess
from resolvent.deployment.flow import Flow, scan_steps


class Prepared(nn.Module):
    """Raw channels x (b, l, c), NaN where missing, or one step (b, c), to model inputs."""

    centre: Tensor
    width: Tensor
    first: Tensor
    padding: Tensor

    def __init__(self, how: Preprocess, dtype: torch.dtype) -> None:
        super().__init__()
        self.how, self.dtype = how, dtype
        self.carries = how.missing in ("ffill", "flag")
        self.shapes = ((how.inputs or 0, 2),) if self.carries else ()  # the last value, and 1 once there is one
        none = torch.zeros(1, 1, how.inputs or 0)
        self.register_buffer("centre", torch.tensor(how.centre, dtype=torch.float64))
        self.register_buffer("width", torch.tensor(how.width, dtype=torch.float64))
        self.register_buffer("first", how._first(none)[0].to(dtype))
        self.register_buffer("padding", how._padding(none).to(dtype))

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        gap = x.isnan()
        if flow.lengths is not None:
            inside = (torch.arange(x.shape[1]) < flow.lengths[:, None])[..., None]
            gap = gap & inside
        scaled = (x.double() - self.centre) / self.width if self.how.scale != "none" else x
        ready = self._filled(scaled.to(self.dtype), gap, flow)
        if flow.lengths is not None:
            ready = torch.where(inside, ready, self.padding)
        return torch.cat([ready, gap[..., list(self.how.flagged)].to(self.dtype)], -1) if self.how.flagged else ready

    def _filled(self, x: Tensor, gap: Tensor, flow: Flow) -> Tensor:
        if self.how.missing == "refuse":
            return x
        if not self.carries:
            return torch.where(gap, self.first, x)
        clean, open_ = torch.where(gap, torch.zeros_like(x), x), gap.to(x.dtype)
        if flow.steps:
            end, out = self._carried(flow.take(1), (clean, open_))
            flow.end += end
            return out
        start = (x.new_zeros(x.shape[0], x.shape[2], 2),)
        return scan_steps(self._carried, start, (clean, open_))

    def _carried(self, state: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Fill a gap with the last value of its channel, or the training mean before there is one."""
        (last, seen), (x, gap) = state[0].unbind(-1), now
        before = seen * last + (1 - seen) * self.first
        value = gap * before + (1 - gap) * x
        seen = torch.maximum(seen, 1 - gap)
        return (torch.stack([value * seen, seen], -1),), value
