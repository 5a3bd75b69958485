"""Small models and data for the tests of whole evaluations."""

from __future__ import annotations

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


BOX = Threat("linf", 0.03, bounds=(0.0, 1.0))
