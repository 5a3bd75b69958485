"""A batch: samples, their random numbers, and the loss of outputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.attacks import Draws, Threat, squared_deviation
from resolvent.attacks.victim import call_padded


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
    weight: Tensor | None = None  # (b,), weight of each sample; None: all equal

    @classmethod
    def of(cls, x: Tensor, y: Tensor, lengths: Tensor | None = None, *, seed: int = 0) -> Batch:
        """Samples of a custom loop; `seed`, such as the step number, fixes the objective's random numbers."""
        if not x.shape[:1] == y.shape[:1] == (x if lengths is None else lengths).shape[:1]:
            shapes = ", ".join(str(tuple(t.shape)) for t in (x, y, lengths) if t is not None)
            raise ValueError(f"Batch.of: expected as many labels (and lengths) as samples, got shapes {shapes}.")
        return cls(x, y, lengths, Draws.of(x, seed))

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of values (b,) over the samples."""
        return values.mean() if self.weight is None else (values * self.weight.to(values.dtype)).mean()

    def loss(self, output: Tensor) -> Tensor:
        """The mean of `criterion`."""
        return self.mean(criterion(output, self.y))

    def call(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """The model as a function of x alone."""
        if self.lengths is None:
            return model
        lengths = self.lengths
        return lambda x: call_padded(model, x, lengths)

    def fitted(self, threat: Threat) -> Threat:
        """The threat for these samples, with padding excluded."""
        if self.lengths is not None:
            threat = threat.with_lengths(self.lengths, self.x.shape[1])
        return threat.check(self.x)

    def __len__(self) -> int:
        return self.x.shape[0]

    def part(self, rows: slice) -> Batch:
        """Some of the samples with their own random numbers: results do not depend on the other samples."""
        lengths = None if self.lengths is None else self.lengths[rows]
        weight = None if self.weight is None else self.weight[rows]
        return Batch(self.x[rows], self.y[rows], lengths, Draws(self.draws.seed, self.draws.index[rows]), weight)


def criterion(output: Tensor, y: Tensor) -> Tensor:
    """l per sample (b,): cross-entropy for integer y, squared error summed over the output for real y.

    One logit (b, 1) is the log-odds of class 1 against class 0.

    Examples:
        >>> rv.training.criterion(torch.zeros(2, 10), torch.tensor([3, 4]))
        tensor([2.3026, 2.3026])
    """
    if y.is_floating_point():
        return squared_deviation(output, y.view_as(output))
    if binary(output):
        return F.binary_cross_entropy_with_logits(output[:, 0], y.to(output.dtype), reduction="none")
    return F.cross_entropy(output, y, reduction="none")


def binary(output: Tensor) -> bool:
    """Whether the output is one logit for two classes."""
    return output.dim() == 2 and output.shape[1] == 1


def wide(output: Tensor) -> Tensor:
    """The output in float32 at least, for losses under autocast."""
    return output.float() if output.element_size() < 4 else output
