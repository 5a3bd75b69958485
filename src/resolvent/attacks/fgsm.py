"""Fast gradient sign method (Goodfellow et al. 2015): one whole step of length eps from x, in the threat's norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.gradient_probe import Fitted, Probe
from resolvent.attacks.model import Victim
from resolvent.attacks.objective import Objective, cross_entropy
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import prepare
from resolvent.attacks.setting import check_count
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat import Threat


@dataclass(frozen=True)
class FGSM:
    """x' = project(x + eps * steepest(gradient at x)); draws nothing."""

    objective: Objective = cross_entropy
    passes: int = 1

    def __post_init__(self) -> None:
        check_count("FGSM", 1, passes=self.passes)

    @property
    def name(self) -> str:
        return "fgsm"

    def __call__(
        self,
        f: Callable[[Tensor], Tensor] | Victim,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        draws: Draws | None = None,
        clean_logits: Tensor | None = None,
    ) -> AttackResult:
        victim, rows = prepare(f, x, y, threat, draws)
        found, objective = Strongest(rows), Fitted(self.objective, rows.y)
        at = torch.arange(x.shape[0], device=x.device)
        with victim.attacked():
            probe = Probe(victim, objective, found, self.passes)
            _, grad, _ = probe.slope(rows, rows.x, at)
            step = rows.threat.radius(rows.x) * rows.threat.steepest(grad)
            x_adv = rows.threat.project(rows.x + step, rows.x)
            loss, logits = probe.value(rows, x_adv, at)
        found.offer(at, x_adv, loss, logits)
        return found.result(self.name, objective.notes)


def fgsm(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """`fgsm(f, x, y, threat)`: the fields of `FGSM` as keywords."""
    return FGSM(**settings)(f, x, y, threat, draws=draws)
