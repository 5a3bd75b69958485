"""Batches that a seed fixes: the same samples in the same order on every run, from any step on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.attacks import Draws, Threat
from resolvent.data.order import fold, shuffled
from resolvent.data.task import Split


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples on the model's device, and the random numbers that belong to them in this epoch."""

    x: Tensor  # (b, l, c) or (b, l)
    y: Tensor  # (b,) or (b, ...)
    lengths: Tensor | None  # (b,)
    draws: Draws

    def call(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """The model as a function of x alone."""
        if self.lengths is None:
            return model
        return lambda x: model(x, self.lengths)

    def fitted(self, threat: Threat) -> Threat:
        """The threat for these samples, padding untouchable."""
        if self.lengths is not None:
            threat = threat.with_lengths(self.lengths, self.x.shape[1])
        return threat.check(self.x)

    def __len__(self) -> int:
        return self.x.shape[0]

    def part(self, rows: slice) -> Batch:
        """Some of the samples with their own random numbers: what happens to them does not depend on the others."""
        lengths = None if self.lengths is None else self.lengths[rows]
        return Batch(self.x[rows], self.y[rows], lengths, Draws(self.draws.seed, self.draws.index[rows]))


class Batches:
    """Batch number `step` of a run. An epoch passes every sample once; its last batch may be smaller."""

    def __init__(self, split: Split, batch_size: int, seed: int) -> None:
        self.split = split
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = -1
        self._order = torch.zeros(0, dtype=torch.long)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.split) // self.batch_size)

    def at(self, step: int) -> Batch:
        epoch, place = divmod(step, len(self))
        if epoch != self._epoch:
            order = shuffled(len(self.split), self.seed, epoch)
            self._epoch, self._order = epoch, torch.from_numpy(order).to(self.split.x.device)
        index = self._order[place * self.batch_size : (place + 1) * self.batch_size]
        return take(self.split, index, fold(self.seed, epoch))


def take(split: Split, index: Tensor, seed: int) -> Batch:
    """The samples at `index`, with their ids in the split as ids of their random numbers."""
    part = split.select(index)
    return Batch(part.x, part.y, part.lengths, Draws(seed, index))
