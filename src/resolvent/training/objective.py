"""Objectives of training: `objective(model, batch) -> Loss`. The loop treats all alike.

`standard` is E[ l(f(x), y) ], where l is the cross-entropy, or for real targets the squared error; adversarial ones
are in `step.adversarial`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from resolvent.training.step.batch import Batch, wide


@dataclass(frozen=True, eq=False)
class Loss:
    """The mean to minimise, and the outputs (b, ...) from which training accuracy is computed.

    Examples:
        >>> rv.training.Loss(torch.tensor(0.7), torch.zeros(2, 10)).output.shape
        torch.Size([2, 10])
    """

    value: Tensor
    output: Tensor


Objective = Callable[[nn.Module, Batch], Loss]
"""A function of model and batch that returns the loss: `standard`, `pgd_at(threat)`, `trades(threat)`, or yours."""


class Around:
    """An objective around another, whose inner attack is its own: `fit` reads the threat from there."""

    objective: Objective

    @property
    def inner(self) -> object:
        return getattr(self.objective, "inner", None)


def standard(model: nn.Module, batch: Batch) -> Loss:
    """The mean loss on clean samples.

    Examples:
        >>> x, y = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> rv.training.standard(model, rv.training.Batch(x, y, None, rv.attacks.Draws.of(x))).output.shape
        torch.Size([4, 2])
    """
    if batch.x.is_cuda:
        from resolvent.training.step.cuda_graph import clean_pass

        quick = clean_pass(model, batch)
        if quick is not None:
            return Loss(*quick)
    output = wide(batch.call(model)(batch.x))
    return Loss(batch.loss(output), output)


def by_name(objective: Objective | str) -> Objective:
    """An objective given by name; adversarial ones need a threat and are refused."""
    if not isinstance(objective, str):
        return objective
    name = objective.lower().replace("-", "_")
    if name == "standard":
        return standard
    if name in ("trades", "pgd_at"):
        raise ValueError(
            f"fit: {objective!r} needs to know what the attacker may do; write "
            f'rv.fit(model, task, rv.{name}(rv.Threat("linf", eps=0.1, bounds=task.bounds))) with your norm and eps.'
        )
    raise ValueError(
        f"fit: expected an objective, got {objective!r}; write "
        'rv.fit(model, task, "standard"), or rv.pgd_at(threat) or rv.trades(threat) with '
        'threat = rv.Threat("linf", eps=0.1, bounds=task.bounds).'
    )
