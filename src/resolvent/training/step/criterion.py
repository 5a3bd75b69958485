"""The loss per sample, and the score that a split is measured by."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from resolvent.attacks import squared_deviation


def criterion(output: Tensor, y: Tensor) -> Tensor:
    """l per sample (b,): cross-entropy for whole-number y, squared error summed over the output for real y.

    One logit (b, 1) says how much class 1 is preferred to class 0.

    Examples:
        >>> rv.training.criterion(torch.zeros(2, 10), torch.tensor([3, 4]))
        tensor([2.3026, 2.3026])
    """
    if y.is_floating_point():
        return squared_deviation(output, y.view_as(output))
    if binary(output):
        return F.binary_cross_entropy_with_logits(output[:, 0], y.to(output.dtype), reduction="none")
    return F.cross_entropy(output, y, reduction="none")


def score(output: Tensor, y: Tensor) -> Tensor:
    """Per sample (b,), larger is better: 1 or 0 for a class, minus the squared error for real y."""
    if y.is_floating_point():
        return -criterion(output, y)
    return (choose_class(output) == y).to(output.dtype)


def choose_class(output: Tensor) -> Tensor:
    """The class that logits speak for (b,)."""
    return (output[:, 0] > 0).long() if binary(output) else output.argmax(-1)


def binary(output: Tensor) -> bool:
    """Whether the output is one logit for two classes."""
    return output.dim() == 2 and output.shape[1] == 1


def pair_logits(output: Tensor) -> Tensor:
    """One logit z as the two of both classes, (0, z), which attacks ask for; others as they are."""
    return F.pad(output, (1, 0)) if binary(output) else output


def wide(output: Tensor) -> Tensor:
    """Losses are taken in float32 at least, whatever autocast made of the outputs."""
    return output.float() if output.element_size() < 4 else output
