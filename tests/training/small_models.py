"""Small models and tasks that the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resolvent.attacks import Draws
from resolvent.data import Task, from_arrays
from resolvent.training import Batch


class Small(nn.Module):
    """(b, l, c) -> (b, classes): a convolution, dropout, the mean over time within the lengths."""

    def __init__(self, channels: int = 2, classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.enter = nn.Linear(channels, 8)
        self.drop = nn.Dropout(dropout)
        self.leave = nn.Linear(8, classes)
        self.freezes = 0
        self.seen: list[bool] = []  # the mode at each call

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.seen.append(self.training)
        h = self.drop(torch.tanh(self.enter(x)))  # (b, l, 8)
        if lengths is None:
            return self.leave(h.mean(1))
        inside = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        return self.leave((h * inside).sum(1) / lengths[:, None])

    @contextmanager
    def frozen(self) -> Iterator[Small]:
        self.freezes += 1
        yield self


def small_task(samples: int = 60, seed: int = 0, *, lengths: bool = False, regression: bool = False) -> Task:
    """Three classes that the mean of channel 0 tells apart, in [0, 1]."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    x = (0.25 * y[:, None, None] + 0.5 * torch.rand(samples, 5, 2, generator=g)).clamp(0, 1)
    steps = torch.randint(1, 6, (samples,), generator=g) if lengths else None
    answers = x.mean((1, 2))[:, None].expand(-1, 3) if regression else y
    return from_arrays(x, answers, steps, bounds=(0.0, 1.0), name="small")


def batch_of(task: Task, size: int = 6, dtype: torch.dtype = torch.float64) -> Batch:
    part = task.train.select(torch.arange(size)).to("cpu", dtype)
    return Batch(part.x, part.y, part.lengths, Draws(3, torch.arange(size)))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))
