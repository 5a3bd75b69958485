"""The inner maximisation of adversarial training: the model still and frozen, a bare ascent, the last iterate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from resolvent.attacks import Threat, Victim
from resolvent.attacks.pgd import ascend
from resolvent.attacks.rows import Rows
from resolvent.attacks.setting import check_count, check_positive
from resolvent.training.batch import Batch

Start = Callable[[Threat], Tensor]


@dataclass(frozen=True)
class Inner:
    """What the attacker may do and how far he walks; a step is 2.5 eps / steps unless told."""

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
        with Victim(model).attacked():  # evaluation mode, tables computed once, input gradients only
            victim = Victim(batch.call(model))
            rows = Rows(batch.x, batch.y, (reference(victim),), threat, batch.draws)
            size = threat.radius(batch.x) * (2.5 / self.steps) if self.step_size is None else self.step_size
            return ascend(victim, rows, start(threat), self.steps, size, objective)
