"""APGD's step size rules: halving at checkpoints (Linf, L2) or adaptive sparsity (L1).

Both hold the step and its momentum for each sample; `update` takes each iterate and returns which samples go back to
their best point.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.apgd.move import move, move_with_momentum
from resolvent.attacks.rows import Rows
from resolvent.attacks.threat.region import Region

_ROOM = 1.5  # L1: a step moves the best point's support divided by this; the step size shrinks by it as well
_LEAST = 10.0  # L1: the step size stays above its first value divided by this
_SAME = 0.95  # L1: the support counts as shrunk when below this share of the last one


@dataclass(eq=False)
class Halving:
    """Croce & Hein 2020, section 3: at checkpoint w_j the step is halved and the search returns to the best point when

    1. the loss rose in no more than rho of the steps since the last checkpoint, or
    2. the last checkpoint did not halve and the best loss has not changed since.

    The first gap between checkpoints is 0.22 of the iterations, each next 0.03 shorter, at least 0.06.
    """

    step: Tensor  # (b, 1, ...) 2 eps at first
    mark: Tensor  # (b,) best loss at the last checkpoint
    reduced: Tensor  # (b,) bool
    rises: Tensor  # (b,) steps since the last checkpoint in which the loss rose
    gap: int
    shorter: int
    least: int
    rho: float
    momentum: float
    since: int = 0

    def move(self, rows: Rows, region: Region, x_adv: Tensor, x_old: Tensor, grad: Tensor, momentum: float) -> Tensor:
        return move(rows.threat, region, x_adv, x_old, grad, self.step, momentum)

    def update(self, rose: Tensor, loss_best: Tensor, x_best: Tensor, x: Tensor) -> Tensor | None:
        self.rises = self.rises + rose
        self.since += 1
        if self.since < self.gap:
            return None
        cut = (self.rises <= self.rho * self.gap) | (~self.reduced & (self.mark >= loss_best))
        self.step = torch.where(cut.view(self.step.shape), self.step / 2, self.step)
        self.reduced, self.mark, self.rises = cut, loss_best.clone(), torch.zeros_like(self.rises)
        self.gap, self.since = max(self.gap - self.shorter, self.least), 0
        return cut

    def select(self, keep: Tensor) -> None:
        self.step, self.mark = self.step[keep], self.mark[keep]
        self.reduced, self.rises = self.reduced[keep], self.rises[keep]


@dataclass(eq=False)
class Sparsity:
    """Croce & Hein 2021 ("Mind the box"): a step moves only the largest gradient entries, as many as the best point's
    support divided by 1.5. Every 0.04 of the iterations: if the support shrank by 5 % or more, the step is eps again
    and the search returns to the best point; otherwise the step shrinks by 1.5, down to eps / 10.
    """

    step: Tensor  # (b, 1, ...) eps at first
    first: Tensor  # (b, 1, ...)
    share: Tensor  # (b,) share of entries that a step moves
    support: Tensor  # (b,) entries of the best point that differ from x, at the last check
    gap: int
    entries: Tensor  # (b,) that the attacker may change
    momentum: float = 1.0  # none
    since: int = 0

    def move(self, rows: Rows, region: Region, x_adv: Tensor, x_old: Tensor, grad: Tensor, momentum: float) -> Tensor:
        return move_with_momentum(region, x_adv, x_old, self.step * rows.threat.steepest(grad, self.share), momentum)

    def update(self, rose: Tensor, loss_best: Tensor, x_best: Tensor, x: Tensor) -> Tensor | None:
        self.since += 1
        if self.since < self.gap:
            return None
        support = support_of(x_best - x)
        shrunk = support < _SAME * self.support
        smaller = torch.maximum(self.step / _ROOM, self.first / _LEAST)
        self.step = torch.where(shrunk.view(self.step.shape), self.first, smaller)
        self.share, self.support, self.since = support / self.entries / _ROOM, support, 0
        return shrunk

    def select(self, keep: Tensor) -> None:
        self.step, self.first = self.step[keep], self.first[keep]
        self.share, self.support, self.entries = self.share[keep], self.support[keep], self.entries[keep]


StepRule = Halving | Sparsity


def halving(rows: Rows, loss: Tensor, steps: int, rho: float, momentum: float) -> Halving:
    none = torch.zeros(len(rows), dtype=torch.int64, device=rows.x.device)
    gap, shorter, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    step = 2 * rows.threat.radius(rows.x)
    # Nothing was reduced before the first checkpoint, but rule 2 must not fire there: it compares two checkpoints.
    return Halving(step, loss.clone(), torch.ones_like(none).bool(), none, gap, shorter, least, rho, momentum)


def sparsity(rows: Rows, start: Tensor, steps: int, warm: bool) -> Sparsity:
    """`warm`: the start came from an earlier stage and its support is used; otherwise a fifth of the entries move."""
    entries = rows.threat.count(rows.x).clamp_min(1).to(rows.x.dtype)  # (b,)
    support = support_of(start - rows.x) if warm else entries
    share = support / entries / _ROOM if warm else torch.full_like(support, 0.2)
    eps = rows.threat.radius(rows.x)
    return Sparsity(eps, eps, share, support, max(int(0.04 * steps), 1), entries)


def support_of(delta: Tensor) -> Tensor:
    """Entries that are not 0: (b,)."""
    return (delta != 0).flatten(1).sum(1).to(delta.dtype)
