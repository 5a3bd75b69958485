"""Fast gradient sign method (Goodfellow et al. 2015): one step of length eps from x, in the threat's norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import Probe
from resolvent.attacks.objective.objective import Objective, cross_entropy
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.threat.threat import Threat


@dataclass(frozen=True)
class FGSM(Opened):
    """x' = project(x + eps * steepest(gradient at x)); deterministic.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> bool((rv.attacks.FGSM()(f, x, y, threat).norm <= 0.1 + 1e-6).all())
        True
    """

    name: ClassVar[str] = "fgsm"
    shapes: ClassVar[bool] = True
    least: ClassVar[dict[str, int]] = {"passes": 1}
    objective: Objective = cross_entropy
    passes: int = 1

    def run(self, opening: Opening) -> AttackResult:
        rows, at = opening.rows, opening.everyone
        probe = Probe.of(opening.victim, rows, self.objective, self.passes)
        _, grad, _ = probe.slope(rows, rows.x, at)
        step = rows.threat.radius(rows.x) * rows.threat.steepest(grad, at=rows.x)
        probe.offer(rows, rows.threat.project(rows.x + step, rows.x), at)
        return probe.result(self.name)


def fgsm(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """One step along the gradient from x (b, ...) with classes y (b,); keywords: the fields of `FGSM`, and `lengths`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.fgsm(f, x, y, threat).x_adv.shape
        torch.Size([4, 3])
    """
    return FGSM.attack(f, x, y, threat, draws=draws, **settings)
