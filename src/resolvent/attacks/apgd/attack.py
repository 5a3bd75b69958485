"""Auto-PGD (Croce & Hein 2020; L1: Croce & Hein 2021): gradient ascent with an adaptive step size.

APGD(cross_entropy)             APGD-CE
APGD(dlr)                       APGD-DLR
APGD(targeted_dlr, targets=9)   APGD-T: one run for each of the 9 likeliest wrong classes
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.apgd.run import Run, run
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import Fitted, Probe, finite
from resolvent.attacks.objective.objective import (
    Objective,
    cross_entropy,
    dlr,
    rank_wrong_classes,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import check_share

_TARGETED = (targeted_dlr, targeted_margin, targeted_cross_entropy)
_NAMES = {cross_entropy: "apgd-ce", dlr: "apgd-dlr", targeted_dlr: "apgd-t"}


@dataclass(frozen=True)
class APGD(Opened):
    """PGD with adaptive steps, as callable settings: `APGD(dlr, restarts=5)(f, x, y, threat)`.

    targets     0, or the number of wrong classes to target (with a targeted objective), likeliest first
    at_once     after the first target alone, which breaks most samples, this many are tried in parallel
    stop        drop a sample as soon as it is misclassified; False continues and keeps the point of highest loss
    larger_eps  L1: 0.3 of the steps in a ball of 3 eps, 0.3 in 2 eps, the rest in eps
    passes      gradients averaged per step (expectation over transformations)

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.APGD(steps=5)(f, x, y, threat).x_adv.shape
        torch.Size([4, 3])
    """

    shapes: ClassVar[bool] = True
    least: ClassVar[dict[str, int]] = {"steps": 0, "targets": 0, "restarts": 1, "at_once": 1, "passes": 1}
    objective: Objective = cross_entropy
    steps: int = 100
    restarts: int = 1
    targets: int = 0
    at_once: int = 8
    stop: bool = True
    rho: float = 0.75
    momentum: float = 0.75
    larger_eps: bool = True
    passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("APGD", rho=self.rho, momentum=self.momentum)
        if (self.objective in _TARGETED) != (self.targets > 0):
            raise ValueError(
                f"APGD: targets > 0 goes with a targeted objective and 0 with any other; got targets={self.targets} "
                f"and {_label(self.objective)}. Use APGD(targeted_dlr, targets=9) or APGD(dlr)."
            )

    @property
    def name(self) -> str:
        return _NAMES.get(self.objective, f"apgd-{_label(self.objective)}")

    def run(self, opening: Opening) -> AttackResult:
        victim, rows = opening.victim, opening.rows
        if self.targets:
            opening.require_classes("APGD with targets")
        found, objective = Strongest(rows, not self.stop), Fitted(self.objective, rows.y)
        clean_logits = opening.look(found)
        _offer_clean(self, objective, found, clean_logits)
        for restart, ranks in _rounds(self, clean_logits.shape[-1]):
            left = (~found.wrong if self.stop else torch.ones_like(found.wrong)).nonzero().flatten()
            if left.numel():
                _attack(self, victim, objective, found, _pairs(rows, left, clean_logits, ranks), restart)
        return found.result(self.name, objective.notes)


def apgd(f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any) -> AttackResult:
    """PGD with steps that adapt, from x (b, ...) with classes y (b,); keywords: the fields of `APGD`, and `lengths`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.apgd(f, x, y, threat, steps=5).success.shape
        torch.Size([4])
    """
    return APGD.attack(f, x, y, threat, draws=draws, **settings)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Work items: each sample once per target tried now, grouped by target (each a block of all samples)."""

    rows: Rows
    sample: Tensor  # (targets * b,) index of the sample
    rank: Tensor  # (targets * b,) 0 without targets
    blocks: int


def _pairs(rows: Rows, left: Tensor, clean_logits: Tensor, ranks: tuple[int, ...]) -> Pairs:
    sample = left.repeat(max(len(ranks), 1))
    work = rows.select(sample)
    if not ranks:
        return Pairs(work, sample, torch.zeros_like(sample), 1)
    rank = torch.tensor(ranks, device=left.device).repeat_interleave(left.numel())
    likeliest = rank_wrong_classes(clean_logits, rows.y)  # (b, classes - 1)
    return Pairs(work.against(work.y, likeliest[sample, rank - 1]), sample, rank, len(ranks))


def _attack(settings: APGD, victim: Victim, objective: Fitted, found: Strongest, pairs: Pairs, restart: int) -> None:
    """All stages of one restart for these pairs; the last one counts."""
    rows, start = pairs.rows, None
    draws = rows.draws.fold("apgd").fold(restart).fold(pairs.rank)
    local = Strongest(rows, not settings.stop)
    probe = Probe(victim, objective, local, settings.passes)
    stages = _stages(settings, rows.threat)
    for number, (factor, steps) in enumerate(stages):
        stage = replace(rows, threat=rows.threat.scaled(factor), draws=draws)
        last = number == len(stages) - 1
        begin = stage.threat.random_start(rows.x, draws, surface=True) if start is None else start
        plan = Run(steps, settings.rho, settings.momentum, len(stages) > 1, last, settings.stop)
        start = run(plan, probe, stage, stage.threat.project(begin, rows.x), pairs.sample)
    _merge(found, local, pairs)


def _merge(found: Strongest, local: Strongest, pairs: Pairs) -> None:
    """Merge target by target, likeliest first, so that each sample occurs once per step."""
    size = pairs.sample.numel() // pairs.blocks
    for i in range(pairs.blocks):
        part = slice(i * size, (i + 1) * size)
        found.merge(local, part, pairs.sample[part])


def _rounds(settings: APGD, classes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(restart, ranks of the targets tried in parallel): the likeliest target alone first."""
    count = min(settings.targets, classes - 1)
    ranks = list(range(1, count + 1))
    groups = [ranks[:1], *(ranks[i : i + settings.at_once] for i in range(1, count, settings.at_once))]
    for group in groups:
        for restart in range(settings.restarts):
            yield restart, tuple(group)


def _stages(settings: APGD, threat: Threat) -> list[tuple[float, int]]:
    """(factor of eps, steps)."""
    n, part = settings.steps, math.ceil(0.3 * settings.steps)
    if threat.norm == "l1" and settings.larger_eps and n > 2 * part:
        return [(3.0, part), (2.0, part), (1.0, n - 2 * part)]
    return [(1.0, n)]


def _offer_clean(settings: APGD, objective: Fitted, found: Strongest, clean_logits: Tensor) -> None:
    """x itself is the first candidate, so misclassified samples need no attack."""
    rows, everyone = found.rows, torch.arange(len(found.rows), device=found.rows.x.device)
    labels = (rows.y, rank_wrong_classes(clean_logits, rows.y)[:, 0]) if settings.targets else rows.labels
    _, loss, _ = finite(objective(clean_logits, *labels), torch.zeros_like(rows.x), clean_logits)
    found.offer(everyone, rows.x, loss, clean_logits)


def _label(objective: Objective) -> str:
    return getattr(objective, "__name__", type(objective).__name__)
