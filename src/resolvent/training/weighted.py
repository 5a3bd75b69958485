"""Class weights: every sample's loss is multiplied by the weight of its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from resolvent.training.objective import Around, Loss, Objective, by_name, standard
from resolvent.training.step.batch import Batch
from resolvent.usage.numbers import check_positive


@dataclass(frozen=True)
class Weighted(Around):
    """An objective with class weights; see `weighted`."""

    objective: Objective
    weights: tuple[float, ...]  # one per class

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if batch.y.is_floating_point():
            raise ValueError("weighted: real targets have no classes to weigh; leave the weights out.")
        if batch.y.device.type == "cpu" and len(batch):  # checking on a GPU would synchronise; `fit` has checked
            require_classes(self, int(batch.y.max()) + 1, least=True)
        table = torch.tensor(self.weights, device=batch.y.device)
        return self.objective(model, replace(batch, weight=table[batch.y]))


def weighted(objective: Objective | str = standard, weights: Sequence[float] | Tensor = ()) -> Weighted:
    """`objective` with `weights`, one per class: a tuple, a list or an array.

    An attack inside is unaffected: it treats each sample separately.

    Examples:
        >>> rv.training.weighted(weights=(1.0, 3.0)).weights
        (1.0, 3.0)
    """
    if isinstance(weights, str) or not len(weights):
        raise ValueError(f"weighted: expected a weight for each class, got {weights!r}; see `balanced_weights`.")
    plain = [weight.item() if hasattr(weight, "item") else weight for weight in weights]  # NumPy scalars
    check_positive("weighted", **{f"weights[{i}]": weight for i, weight in enumerate(plain)})
    return Weighted(by_name(objective), tuple(plain))


def require_classes(objective: object, classes: int | None, least: bool = False) -> None:
    """Refuse weights whose number differs from the classes; `least`: there may be more classes than have been seen."""
    if not isinstance(objective, Weighted) or classes is None:
        return
    given = len(objective.weights)
    if given < classes or (given > classes and not least):
        raise ValueError(f"weighted: expected a weight for each of {classes} classes, got {given} weights.")


def balanced_weights(y: Tensor, classes: int) -> tuple[float, ...]:
    """n / (classes n_c): all classes present have equal total weight, and the mean over samples is 1.

    A class without a sample has no loss and gets weight 1.

    Examples:
        >>> rv.training.balanced_weights(torch.tensor([0, 0, 0, 1]), 2)
        (0.6666666666666666, 2.0)
    """
    counts = torch.bincount(y.flatten().long().cpu(), minlength=classes)
    present = int((counts > 0).sum())
    return tuple(len(y) / (present * n) if n else 1.0 for n in counts.tolist())
