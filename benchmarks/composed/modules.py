"""A layer inside somebody's own module: four blocks of LayerNorm, layer, GELU, Linear and skip, and who competes.

The rivals are written here from torch's own operations: S4D as a reader of its paper writes it first (a kernel of full
length, convolution by float32 FFT), causal attention by `scaled_dot_product_attention`, and `nn.GRU`, cuDNN's on a GPU.
The same blocks with no layer in them tell what the user's own modules, loop and optimiser take, and what a compiler
makes of those alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import resolvent as rv

BLOCKS = 4
NAIVE, ATTENTION, GRU, EMPTY = "naive S4D", "SDPA", "GRU", "no layer"


class Block(nn.Module):
    """x + Linear(GELU(layer(LayerNorm(x))))."""

    def __init__(self, layer: nn.Module, d: int) -> None:
        super().__init__()
        self.norm, self.layer, self.linear = nn.LayerNorm(d), layer, nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.norm(x))
        return x + self.linear(F.gelu(y[0] if isinstance(y, tuple) else y))


class Stack(nn.Module):
    """Four such blocks."""

    def __init__(self, make: Callable[[int], nn.Module], d: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(make(d), d) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class NaiveS4D(nn.Module):
    """The kernel K (d, l) = 2 Re sum_n C B_bar lam_bar^l by a Vandermonde product, then FFTs, in the parameters' dtype.

    Its parameters are those of an `rv.layers.S4D`.
    """

    def __init__(self, d: int, like: rv.layers.S4D | None = None) -> None:
        super().__init__()
        like = rv.layers.S4D(d) if like is None else like
        for name in ("log_decay", "frequency", "log_dt", "B", "C", "D"):
            setattr(self, name, nn.Parameter(getattr(like, name).detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            u, l = x.to(self.D.dtype).mT, x.shape[1]  # (b, d, l)
            k = self._kernel(l)
            y = torch.fft.irfft(torch.fft.rfft(u, 2 * l) * torch.fft.rfft(k, 2 * l), 2 * l)[..., :l]
            y = (y + self.D[:, None] * u).mT
        return y.to(x.dtype)

    def _kernel(self, l: int) -> Tensor:
        lam = torch.complex(-self.log_decay.exp(), self.frequency)  # (d, n)
        z = self.log_dt.exp()[:, None] * lam
        weight = torch.view_as_complex(self.C) * torch.view_as_complex(self.B) * torch.expm1(z) / lam
        powers = torch.exp(z[..., None] * torch.arange(l, device=z.device))  # (d, n, l)
        return 2 * (weight[..., None] * powers).sum(1).real


class CausalAttention(nn.Module):
    """Heads of 64 channels."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.heads, self.into, self.out = max(d // 64, 1), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, l, d = x.shape
        q, k, v = self.into(x).view(b, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, l, d))


@dataclass(frozen=True)
class Contender:
    """`at_least`: how many times as quick as the naive S4D a training step has to be; None: it is no layer of ours."""

    name: str
    make: Callable[[int], nn.Module]
    at_least: float | None = 2.0
    compiles: bool = True
    step_ms: float | None = None  # the most that one streaming step may take on a GPU

    @property
    def ours(self) -> bool:
        return self.at_least is not None


def contenders() -> list[Contender]:
    own = rv.layers
    return [
        Contender(NAIVE, NaiveS4D, None, compiles=False),  # the compiler has no complex numbers
        Contender(ATTENTION, CausalAttention, None),
        Contender(GRU, lambda d: nn.GRU(d, d, batch_first=True), None, compiles=False),
        Contender(EMPTY, lambda d: nn.Identity(), None),
        Contender("S4D", own.S4D, step_ms=0.03),
        Contender("DSS", own.DSS, step_ms=0.03),
        Contender("EMA", own.EMA, step_ms=0.03),
        Contender("S5", own.S5, step_ms=0.03),
        Contender("LRU", own.LRU, step_ms=0.03),
        Contender("S6", own.S6, step_ms=0.06),
        Contender("RGLRU", own.RGLRU, step_ms=0.06),
        Contender("Mamba", rv.blocks.Mamba),
        Contender("S4", own.S4, at_least=1.0),
        Contender("L2RU", own.L2RU, at_least=1.0),
    ]


def build(contender: Contender, d: int, device: torch.device) -> Stack:
    """The same parameters at every call."""
    torch.manual_seed(0)
    return Stack(contender.make, d).to(device)


def truth(contender: Contender, model: Stack) -> nn.Module:
    """The model in float64; S4D by the naive version, which shares no code with ours."""
    twin: Any = Stack(lambda d: nn.Identity(), model.blocks[0].linear.in_features)
    for block, own in zip(twin.blocks, model.blocks, strict=True):
        if contender.name == "S4D":
            block.layer = NaiveS4D(0, own.layer)
        else:
            torch.manual_seed(0)
            block.layer = contender.make(own.linear.in_features)
            block.layer.load_state_dict(own.layer.state_dict())
        block.norm.load_state_dict(own.norm.state_dict())
        block.linear.load_state_dict(own.linear.state_dict())
    wide: nn.Module = twin.to(next(model.parameters()).device, torch.float64)
    return wide
