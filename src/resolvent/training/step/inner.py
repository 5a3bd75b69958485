"""The inner maximisation of adversarial training: the model still and frozen, a bare ascent, the last iterate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat, Victim
from resolvent.attacks.pgd import ascend
from resolvent.attacks.rows import Rows
from resolvent.attacks.setting import check_count, check_positive
from resolvent.training.step.batch import Batch

Start = Callable[[Threat], Tensor]


@dataclass(frozen=True)
class Inner:
    """What the attacker may do and how far he walks; a step is 2.5 eps / steps unless told.

    Examples:
        >>> rv.training.Inner(rv.Threat("linf", 0.1), steps=5).steps
        5
    """

    threat: Threat
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise TypeError(f"expected a Threat, got {type(self.threat).__name__}; write Threat('linf', eps, (0, 1)).")
        check_count("inner maximisation", 0, steps=self.steps)
        if self.step_size is not None:
            check_positive("inner maximisation", step_size=self.step_size)

    def ascend(
        self,
        model: nn.Module,
        batch: Batch,
        start: Start,
        objective: Callable[..., Tensor],
        reference: Callable[[Victim], Tensor],
    ) -> Tensor:
        """x' after `steps` steps up objective(f(x'), reference) from start(threat); with no steps x itself."""
        if self.steps == 0:
            return batch.x
        threat = batch.fitted(self.threat)
        victim = Victim(model)
        with victim.attacked():  # evaluation mode, tables computed once, input gradients only
            rows = Rows(batch.x, batch.y, (reference(victim),), threat, batch.draws, batch.lengths)
            return ascend(victim, rows, start(threat), self.steps, self.size(threat, batch.x), objective)

    def size(self, threat: Threat, x: Tensor) -> Tensor:
        """The length of a step, shaped to multiply x: (b, 1, ...)."""
        radius = threat.radius(x)
        return radius * (2.5 / self.steps) if self.step_size is None else torch.full_like(radius, self.step_size)
