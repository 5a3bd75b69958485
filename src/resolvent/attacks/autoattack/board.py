"""The state of an evaluation, one entry per sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from resolvent.attacks.result import AttackResult

STANDS = -1  # in `broken_by`: no attack broke the sample
CLEAN = 0  # in `broken_by`: misclassified before any attack; attack k of the list has number k + 1


@dataclass(frozen=True, eq=False)
class Fallen:
    """The results of a smaller ball: a sample broken there is broken in every larger one."""

    broken_by: Tensor  # (n,) STANDS if unknown
    x_adv: Tensor  # (n, ...)
    margin: Tensor  # (n,) at x_adv

    def select(self, rows: Tensor) -> Fallen:
        return Fallen(self.broken_by[rows], self.x_adv[rows], self.margin[rows])

    def with_those(self, before: Fallen) -> Fallen:
        """Combine the clean result with the points of a smaller ball for the samples broken there."""
        fell = (before.broken_by > CLEAN) & (self.broken_by == STANDS)
        at = fell.view(-1, *[1] * (self.x_adv.dim() - 1))
        broken_by = torch.where(fell, before.broken_by, self.broken_by)
        gap = torch.where(fell, before.margin, self.margin)
        return Fallen(broken_by, torch.where(at, before.x_adv, self.x_adv), gap)


@dataclass(eq=False)
class Board:
    """The state of an evaluation, one entry per sample."""

    logits: Tensor  # (n, k) of the clean input
    x_adv: Tensor  # the point that broke the sample, or the strongest attempt
    margin: Tensor  # (n,) at x_adv
    broken_by: Tensor  # (n,) STANDS, CLEAN or the attack's number
    tried_by: Tensor  # (n,) which attack found x_adv
    queries: Tensor  # (n,) int64
    gradients: Tensor  # (n,) int64
    zero_gradient: Tensor  # (n,) bool
    non_finite: Tensor  # (n,) bool
    undecided: Tensor  # (n,) bool: time ran out before every attack was tried
    notes: tuple[str, ...] = ()
    done: dict[str, tuple[int, int]] = field(default_factory=dict)  # per attack: samples attacked, samples to attack

    @property
    def standing(self) -> Tensor:
        return (self.broken_by == STANDS).nonzero().squeeze(1)

    def take(self, number: int, rows: Tensor, found: AttackResult) -> None:
        """Record one batch: broken samples are done, a stronger attempt replaces a weaker one."""
        better = found.success | (found.margin > self.margin[rows])
        at = rows[better]
        self.x_adv[at] = found.x_adv[better]
        self.margin[at] = found.margin[better]
        self.tried_by[at] = number
        self.broken_by[rows[found.success]] = number
        self.queries[rows] += found.queries
        self.gradients[rows] += found.gradients
        self.zero_gradient[rows] |= found.zero_gradient
        self.non_finite[rows] |= found.non_finite
        self.notes = tuple(dict.fromkeys(self.notes + found.notes))
