"""Parts that are pointwise in time, and their combinations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.norm import divide_by_rms
from resolvent.deployment.flow import Flow, keep
from resolvent.lowering.eager import CURVES
from resolvent.lowering.program import end_block


class Map(nn.Module):
    """W x + b."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        keep(self, weight=weight, bias=bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Table(nn.Module):
    """Rows of tokens."""

    rows: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        keep(self, rows=rows)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return F.embedding(x, self.rows)


class Curve(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return CURVES[self.kind](x)


class Times(nn.Module):
    """One number times x."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return x * self.value


class Affine(nn.Module):
    """Scale and shift of every channel: batch norm in evaluation."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        keep(self, scale=scale, shift=shift)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return x * self.scale + self.shift


class Normed(nn.Module):
    """Layer norm (`centred`), or x / rms(x); times `scale`, plus `shift`."""

    scale: Tensor
    shift: Tensor | None

    def __init__(self, centred: bool, eps: float, scale: Tensor, shift: Tensor | None) -> None:
        super().__init__()
        self.centred, self.eps = centred, eps
        keep(self, scale=scale, shift=shift)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        y = divide_by_rms(x, self.eps) * self.scale
        return y if self.shift is None else y + self.shift


class Product(nn.Module):
    """then(of(x) * by(x) + plus(x))."""

    def __init__(self, of: nn.Module, by: nn.Module, plus: nn.Module | None, then: nn.Module) -> None:
        super().__init__()
        self.of, self.by, self.plus, self.then = of, by, plus, then

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        y = self.of(x, flow) * self.by(x, flow)
        return self.then(y if self.plus is None else y + self.plus(x, flow), flow)


class Skipped(nn.Module):
    """prenorm: x + branch(norm(x)), else norm(x + branch(x)); without `adds` only the branch."""

    def __init__(self, norm: nn.Module, branch: nn.Module, prenorm: bool, adds: bool) -> None:
        super().__init__()
        self.norm, self.branch, self.prenorm, self.adds = norm, branch, prenorm, adds

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        h = self.branch(self.norm(x, flow) if self.prenorm else x, flow)
        return end_block(x, h, lambda y: self.norm(y, flow), self.prenorm, self.adds)
