"""Classes that count more than others: every sample's loss is multiplied by the weight of its class."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from resolvent.attacks.setting import check_positive
from resolvent.training.objective import Loss, Objective, standard
from resolvent.training.step.batch import Batch


@dataclass(frozen=True)
class Weighted:
    """An objective over weighted samples; see `weighted`."""

    objective: Objective
    weights: tuple[float, ...]  # one a class

    @property
    def inner(self) -> object:
        """Of an adversarial objective: `fit` reads its threat from here."""
        return getattr(self.objective, "inner", None)

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if batch.y.is_floating_point():
            raise ValueError("weighted: real targets have no classes to weigh; leave the weights out.")
        table = torch.tensor(self.weights, device=batch.y.device)
        return self.objective(model, replace(batch, weight=table[batch.y]))


def weighted(objective: Objective = standard, weights: tuple[float, ...] = ()) -> Weighted:
    """`objective` with `weights`, one a class. An attack inside is the same: it moves each sample for itself.

    Examples:
        >>> rv.training.weighted(weights=(1.0, 3.0)).weights
        (1.0, 3.0)
    """
    check_positive("weighted", **{f"weights[{i}]": weight for i, weight in enumerate(weights)})
    return Weighted(objective, tuple(weights))


def balanced_weights(y: Tensor, classes: int) -> tuple[float, ...]:
    """n / (classes n_c): every class present counts the same in all, and the mean over samples is 1.

    A class without a sample has no loss to weigh and gets 1.
    """
    counts = torch.bincount(y.flatten().long().cpu(), minlength=classes)
    present = int((counts > 0).sum())
    return tuple(len(y) / (present * n) if n else 1.0 for n in counts.tolist())
