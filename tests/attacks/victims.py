"""Small models and data for the tests of whole evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat


class Recurrent(nn.Module):
    """A linear recurrence and a readout: (b, l, d) -> (b, classes). What other libraries take for one image."""

    def __init__(self, d: int = 3, n: int = 8, classes: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.decay = nn.Parameter(torch.rand(n, generator=generator) * 0.5 + 0.4)
        self.into = nn.Parameter(torch.randn(d, n, generator=generator))
        self.out = nn.Parameter(torch.randn(n, classes, generator=generator))
        self.noise = nn.Dropout(0.5)  # shows when the mode is wrong

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.decay.shape[0])
        for u in x.unbind(1):
            h = torch.tanh(self.decay * h + (2 * u - 1) @ self.into / 2)
        return self.noise(h) @ self.out


class Padded(Recurrent):
    """The same, which stops at each length."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return super().forward(x)
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return super().forward(torch.where(inside[:, :, None], x, 0.5))


class Perceptron(nn.Module):
    """A small classifier of any shape that sums row by row, in double precision: batches of any size agree."""

    def __init__(self, shape: tuple[int, ...], hidden: int, classes: int) -> None:
        super().__init__()
        n = int(torch.tensor(shape).prod())
        g = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(n, hidden, generator=g).double() / n**0.5)
        self.last = nn.Parameter(torch.randn(hidden, classes, generator=g).double())

    def forward(self, x: Tensor) -> Tensor:
        hidden = ((x.flatten(1).double() - 0.5)[:, :, None] * self.first).sum(1)
        return (torch.tanh(3 * hidden)[:, :, None] * self.last).sum(1)


def answered(f: nn.Module, shape: tuple[int, ...], b: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples and the model's own answers."""
    x = torch.rand(b, *shape, generator=torch.Generator().manual_seed(seed))
    return x, f(x).argmax(1)


def any_threat(norm: str, largest: float, x: Tensor, bounds: Any, masked: bool, seed: int) -> Threat:
    """Drawn sizes up to the largest, one for each sample; bounds of each "feature" or as given; a mask or none."""
    g = torch.Generator().manual_seed(seed)
    if bounds == "feature":
        low = x.amin(0) - torch.rand(x.shape[1:], generator=g) * 0.1
        bounds = (low, low.max() + 1.0 + torch.rand(x.shape[1:], generator=g))
    mask = torch.rand(x.shape, generator=g) < 0.6 if masked else None
    return Threat(norm, largest * torch.rand(len(x), generator=g), bounds, mask)


def sequences(n: int = 24, l: int = 6, d: int = 3, seed: int = 1) -> Tensor:
    return torch.rand(n, l, d, generator=torch.Generator().manual_seed(seed))


def labelled(model: nn.Module, x: Tensor, wrong: int = 2) -> Tensor:
    """The model's own answers, the first few of them changed: clean accuracy is known."""
    with torch.no_grad():
        logits = model.eval()(x)
    model.train()
    y = logits.argmax(1)
    y[:wrong] = (y[:wrong] + 1) % logits.shape[1]
    return y


STRANGER = f"{Path(__file__)}:Recurrent"  # as the command line names a class
BOX = Threat("linf", 0.03, bounds=(0.0, 1.0))
