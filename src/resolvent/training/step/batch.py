"""Batches that a seed fixes: the same samples in the same order on every run, from any step on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.attacks import Draws, Threat
from resolvent.attacks.victim import call_padded
from resolvent.data.augment import CropFlip
from resolvent.data.loader import Loader, send_to
from resolvent.data.order import fold
from resolvent.data.task import Split


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples on the model's device, and the random numbers that belong to them in this epoch.

    Examples:
        >>> x, y = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> batch = rv.training.Batch(x, y, None, rv.attacks.Draws.of(x))
        >>> batch.x.shape
        torch.Size([4, 8, 1])
    """

    x: Tensor  # (b, l, c) or (b, l)
    y: Tensor  # (b,) or (b, ...)
    lengths: Tensor | None  # (b,)
    draws: Draws
    weight: Tensor | None = None  # (b,), how much each sample counts; None: all the same

    @classmethod
    def of(cls, x: Tensor, y: Tensor, lengths: Tensor | None = None, *, seed: int = 0) -> Batch:
        """Samples of a loop of one's own; `seed` fixes what an objective draws, the number of the step for instance."""
        if not x.shape[:1] == y.shape[:1] == (x if lengths is None else lengths).shape[:1]:
            shapes = ", ".join(str(tuple(t.shape)) for t in (x, y, lengths) if t is not None)
            raise ValueError(f"Batch.of: expected as many answers (and lengths) as samples, got shapes {shapes}.")
        return cls(x, y, lengths, Draws.of(x, seed))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values (b,) over the samples, each as much as it counts."""
        return values.mean() if self.weight is None else (values * self.weight.to(values.dtype)).mean()

    def call(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """The model as a function of x alone."""
        if self.lengths is None:
            return model
        lengths = self.lengths
        return lambda x: call_padded(model, x, lengths)

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
        weight = None if self.weight is None else self.weight[rows]
        return Batch(self.x[rows], self.y[rows], lengths, Draws(self.draws.seed, self.draws.index[rows]), weight)


class Batches:
    """Batch number `step` of a run. An epoch passes every sample once; its last batch may be smaller."""

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
        """Make a batch before it is asked for; it is the same one."""
        self._ready = (step, self._make(step))

    def _make(self, step: int) -> Batch:
        samples = self._loader.at(step)
        return Batch(samples.x, samples.y, samples.lengths, Draws(fold(self.seed, samples.epoch), samples.index))


def take(split: Split, index: Tensor, seed: int, device: torch.device | None = None) -> Batch:
    """The samples at `index`, with their ids in the split as ids of their random numbers; on `device` where given."""
    part = split.select(index.to(split.x.device))
    device = split.x.device if device is None else device
    lengths = None if part.lengths is None else send_to(part.lengths, device)
    return Batch(send_to(part.x, device), send_to(part.y, device), lengths, Draws(seed, index.to(device)))
