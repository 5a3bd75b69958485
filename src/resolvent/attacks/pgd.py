"""Projected gradient ascent (Madry et al. 2018): x' <- project(x' + step * steepest(gradient))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import Fitted, Probe, aim_objective, finite
from resolvent.attacks.objective.objective import Objective, cross_entropy
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.region import Region
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import check_choice, check_positive


@dataclass(frozen=True)
class PGD(Opened):
    """Projected gradient ascent, as callable settings: `PGD(steps=20)(f, x, y, threat)`.

    step_size     length of a step in the threat's norm; default 2.5 * eps / steps
    random_start  start at a uniform random point of the ball (otherwise at x itself)
    keep          "best": the strongest point visited (misclassified first, then by loss); "last": the final iterate,
                  the strongest of them over restarts
    stop          drop a sample as soon as it is misclassified
    passes        gradients averaged per step (expectation over transformations)

    `PGD(steps=40)(f, x, y, threat, target=3)` aims at class 3 and counts only that as success.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> bool((rv.PGD(steps=5)(f, x, y, threat).norm <= 0.1 + 1e-6).all())
        True
    """

    shapes: ClassVar[bool] = True
    aims: ClassVar[bool] = True
    least: ClassVar[dict[str, int]] = {"steps": 0, "restarts": 1, "passes": 1}
    steps: int = 10
    step_size: float | None = None
    restarts: int = 1
    random_start: bool = True
    keep: Literal["best", "last"] = "best"
    objective: Objective = cross_entropy
    stop: bool = False
    passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            check_positive("PGD", step_size=self.step_size)
        check_choice("PGD", "keep", self.keep, ("best", "last"))

    @property
    def name(self) -> str:
        return f"pgd-{self.steps}"

    def run(self, opening: Opening) -> AttackResult:
        rows = opening.rows
        found, objective = Strongest(rows), Fitted(aim_objective(self.objective, rows), rows.y, rows.target)
        for restart in range(self.restarts if self.steps else 1):
            at = opening.everyone[~found.wrong] if self.stop else opening.everyone
            if at.numel():
                probe = Probe(opening.victim, objective, found, self.passes)
                _run(self, probe, rows.select(at), at, restart)
        return found.result(self.name, objective.notes)


def pgd(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """Projected gradient ascent of a loss from x (b, ...) with classes y (b,), f from x to logits (b, k).

    settings  the fields of `PGD` as keywords (`steps=20`), and `labels`, `lengths` (b,) and `target`

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.pgd(f, x, y, threat, steps=20).x_adv.shape
        torch.Size([4, 3])
    """
    return PGD.attack(f, x, y, threat, draws=draws, **settings)


def ascend(
    victim: Victim, rows: Rows, x_adv: Tensor, steps: int, step: Tensor | float, objective: Objective = cross_entropy
) -> Tensor:
    """The bare iteration without bookkeeping and without a pass at the final point, for adversarial training.

    Examples:
        >>> from resolvent.attacks.rows import Rows
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> rows = Rows(x, y, (y,), rv.Threat("linf", 0.1), rv.attacks.Draws.of(x))
        >>> rv.attacks.ascend(rv.attacks.Victim(f), rows, x, steps=5, step=0.03).shape
        torch.Size([4, 3])
    """
    region = rows.threat.around(rows.x)
    for _ in range(steps):
        loss, grad, logits = victim.value_and_grad(x_adv, objective, *rows.labels, lengths=rows.lengths)
        _, _, grad = finite(loss, grad, logits)
        x_adv = region.project(x_adv + step * rows.threat.steepest(grad, at=x_adv))
    return x_adv


def _run(settings: PGD, probe: Probe, rows: Rows, at: Tensor, restart: int) -> None:
    """One run from one start. `at` are the samples' indices in the results; both shrink as samples break."""
    x_adv, step = _start(settings, rows, restart), _step(settings, rows)
    last, region = settings.keep == "last", rows.threat.around(rows.x)
    for _ in range(settings.steps):
        loss, grad, logits = probe.slope(rows, x_adv, at)
        if settings.stop or not last:
            broken = probe.found.offer(at, x_adv, loss, logits)
            if settings.stop and bool(broken.any()):
                rows, region, x_adv, step, grad, at = _drop(~broken, rows, region, x_adv, step, grad, at)
        if not at.numel():
            return
        x_adv = region.project(x_adv + step * rows.threat.steepest(grad, at=x_adv))
    loss, logits = probe.value(rows, x_adv, at)
    probe.found.offer(at, x_adv, loss, logits, latest=last and restart == 0)


def _drop(keep: Tensor, rows: Rows, region: Region, *tensors: Tensor) -> tuple[Any, ...]:
    return rows.select(keep), region.select(keep), *(t[keep] for t in tensors)


def _start(settings: PGD, rows: Rows, restart: int) -> Tensor:
    if not settings.random_start or not settings.steps:
        return rows.x
    return rows.threat.random_start(rows.x, rows.draws.fold("pgd").fold(restart))


def _step(settings: PGD, rows: Rows) -> Tensor:
    eps = rows.threat.radius(rows.x)
    if settings.step_size is not None:
        return torch.full_like(eps, settings.step_size)
    return eps * (2.5 / max(settings.steps, 1))
