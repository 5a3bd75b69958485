"""Batches determined by a seed: the same samples in the same order on every run, from any step on."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks import Draws
from resolvent.data.augment import CropFlip
from resolvent.data.loader import Loader, send_to
from resolvent.data.order import fold
from resolvent.data.task import Split
from resolvent.training.step.batch import Batch


class Batches:
    """Batch number `step` of a run. An epoch visits every sample once; its last batch may be smaller."""

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        augment: CropFlip | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.split = split
        self.seed = seed
        self._loader = Loader(split, batch_size, seed, device=device, augment=augment)
        self._ready: tuple[int, Batch] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._loader)

    def at(self, step: int) -> Batch:
        if self._ready is not None and self._ready[0] == step:
            return self._ready[1]
        return self._make(step)

    def prepare(self, step: int) -> None:
        """Make a batch ahead of time."""
        self._ready = (step, self._make(step))

    def _make(self, step: int) -> Batch:
        samples = self._loader.at(step)
        return Batch(samples.x, samples.y, samples.lengths, Draws(fold(self.seed, samples.epoch), samples.index))


def take(split: Split, index: Tensor, seed: int, device: torch.device | None = None) -> Batch:
    """The samples at `index`, with random numbers by their ids in the split; on `device` if given."""
    part = split.select(index.to(split.x.device))
    device = split.x.device if device is None else device
    lengths = None if part.lengths is None else send_to(part.lengths, device)
    return Batch(send_to(part.x, device), send_to(part.y, device), lengths, Draws(seed, index.to(device)))
