"""The strongest point visited for each sample, its cost, and problems on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import margin
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows, is_label


class Strongest:
    """Per sample the strongest point visited: misclassified before others, then by loss.

    `by_loss` compares losses only: cross-entropy can be higher at a correctly classified point.
    """

    def __init__(self, rows: Rows, by_loss: bool = False) -> None:
        b, x = len(rows), rows.x
        self.rows = rows
        self.by_loss = by_loss
        self.x_adv = x.clone()
        self.wrong = torch.zeros(b, dtype=torch.bool, device=x.device)
        self.loss = torch.full((b,), -torch.inf, dtype=x.dtype, device=x.device)
        self.margin = self.loss.clone()
        self.queries = torch.zeros(b, dtype=torch.int64, device=x.device)
        self.gradients = self.queries.clone()
        self.zero_gradient = self.wrong.clone()
        self.non_finite = self.wrong.clone()

    def offer(self, at: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor, latest: bool = False) -> Tensor:
        """Offer points for the samples `at` (distinct); a loss of -inf is never taken. Returns which are misclassified.

        `latest` always takes the new point.
        """
        y, sound = self.rows.y[at], loss > -torch.inf
        target = self.rows.target
        if target is None:
            wrong, gap = judge(logits, y, loss)
        else:  # that class wins, and by how much
            wrong, gap = logits.argmax(1) == target[at], -margin(logits, target[at])
        wrong &= sound
        better = self._better(at, wrong, loss)
        take = sound if latest else better
        where = at[take]
        self.x_adv[where], self.wrong[where] = x_adv[take], wrong[take]
        self.loss[where], self.margin[where] = loss[take].to(self.loss.dtype), gap[take].to(self.loss.dtype)
        return wrong

    def count(self, at: Tensor, passes: int, backward: bool = True) -> None:
        self.queries[at] += passes
        self.gradients[at] += passes * backward

    def merge(self, other: Strongest, part: slice, at: Tensor) -> None:
        """Merge another search's results and costs for `part` of its samples, which are the distinct `at` here."""
        wrong, loss = other.wrong[part], other.loss[part]
        better = self._better(at, wrong, loss)
        for name in ("x_adv", "wrong", "loss", "margin"):
            getattr(self, name)[at[better]] = getattr(other, name)[part][better]
        self.queries[at] += other.queries[part]
        self.gradients[at] += other.gradients[part]
        self.zero_gradient[at] |= other.zero_gradient[part]
        self.non_finite[at] |= other.non_finite[part]

    def _better(self, at: Tensor, wrong: Tensor, loss: Tensor) -> Tensor:
        higher = loss > self.loss[at]
        return higher if self.by_loss else torch.where(wrong == self.wrong[at], higher, wrong)

    def result(self, name: str, notes: tuple[str, ...] = ()) -> AttackResult:
        threat, x = self.rows.threat, self.rows.x
        flat = self.zero_gradient & (threat.count(x) > 0)  # where nothing may change a zero gradient is no problem
        return AttackResult(
            self.x_adv, self.wrong, self.loss, self.margin, threat.norm_of(self.x_adv - x), self.queries,
            self.gradients, flat, self.non_finite, name, notes,
        )  # fmt: skip


def judge(logits: Tensor, y: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """(misclassified, margin); without classes nothing is misclassified and the margin is the negative loss."""
    if not is_label(y):
        return torch.zeros(y.shape[0], dtype=torch.bool, device=y.device), -loss
    return logits.argmax(1) != y, margin(logits, y)
