"""The loss per sample, and the score that a split is measured by."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from resolvent.attacks import squared_deviation


def criterion(output: Tensor, y: Tensor) -> Tensor:
    """l per sample (b,): cross-entropy for whole-number y, squared error summed over the output for real y."""
    if y.is_floating_point():
        return squared_deviation(output, y.view_as(output))
    return F.cross_entropy(output, y, reduction="none")


def score(output: Tensor, y: Tensor) -> Tensor:
    """Per sample (b,), larger is better: 1 or 0 for a class, minus the squared error for real y."""
    return -criterion(output, y) if y.is_floating_point() else (output.argmax(-1) == y).to(output.dtype)


def wide(output: Tensor) -> Tensor:
    """Losses are taken in float32 at least, whatever autocast made of the outputs."""
    return output.float() if output.element_size() < 4 else output
