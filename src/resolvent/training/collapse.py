"""The penalty with which the generalisation study prevents constant outputs (Keller 2024).

    max(0, 10 (0.1 - std(sigmoid(z))))        over all logits z of a batch

is 1 for constant outputs and 0 once the probabilities have a standard deviation of a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.training.objective import Around, Loss, Objective, standard
from resolvent.training.step.batch import Batch

WEIGHT, LEAST = 10.0, 0.1


def collapse(output: Tensor) -> Tensor:
    """The penalty. The standard deviation is the unbiased one; of a single number it is 0."""
    p = torch.sigmoid(output)
    spread = p.std() if p.numel() > 1 else p.new_zeros(())
    return torch.relu(WEIGHT * (LEAST - spread))


@dataclass(frozen=True)
class Spread(Around):
    """An objective plus the penalty on its outputs; see `spread`."""

    objective: Objective = standard

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        loss = self.objective(model, batch)
        return Loss(loss.value + collapse(loss.output), loss.output)


def spread(objective: Objective = standard) -> Spread:
    """`objective` plus the collapse-avoidance penalty.

    Examples:
        >>> rv.training.spread().objective is rv.training.standard
        True
    """
    return Spread(objective)
