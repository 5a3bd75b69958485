"""One model evaluation: objective, gradient and outputs at a point, with NaN handling and counts per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import (
    Objective,
    cross_entropy,
    dlr,
    fallback,
    margin,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)
from resolvent.attacks.objective.slope import Slope, slope_of
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows, check_logits
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.victim import Victim


class Fitted:
    """An objective that checks the first logits: labels must fit them, and few classes need a fallback."""

    def __init__(self, objective: Objective, y: Tensor, target: Tensor | None = None) -> None:
        self.objective = objective
        self.y = y
        self.target = target
        self.notes: tuple[str, ...] = ()
        self._fresh = True

    def __call__(self, logits: Tensor, *labels: Tensor) -> Tensor:
        if self._fresh:
            self._fit(logits)
        return self.objective(logits, *labels)

    def settled(self) -> Objective | None:
        """The objective itself; None before it has seen logits."""
        return None if self._fresh else self.objective

    def closed_slope(self) -> Slope | None:
        """The objective with its gradient in the logits, if a closed form is known."""
        return None if slope_of(self.objective) is None else self._slope

    def saturated(self, loss: Tensor) -> Tensor:
        """Where a zero gradient is expected: DLR is constant once y is the third of the sorted logits."""
        return (loss > 0) & (self.objective in (dlr, targeted_dlr))

    def _slope(self, logits: Tensor, *labels: Tensor) -> tuple[Tensor, Tensor]:
        if self._fresh:
            self._fit(logits)
        known = slope_of(self.objective)
        assert known is not None  # the fallback of an objective with a closed form has one, too
        return known(logits, *labels)

    def _fit(self, logits: Tensor) -> None:
        check_logits(logits, self.y, self.target)
        self.objective, note = fallback(self.objective, logits.shape[-1])
        self.notes = () if note is None else (note,)
        self._fresh = False


def aim_objective(objective: Objective, rows: Rows) -> Objective:
    """The targeted version of a loss of labels if there is a target; other objectives unchanged."""
    turned = {cross_entropy: targeted_cross_entropy, margin: targeted_margin, dlr: targeted_dlr}
    if rows.target is not None:
        return turned.get(objective, objective)
    if objective in turned.values() and len(rows.labels) < 2:
        name = getattr(objective, "__name__", "a targeted objective")
        raise ValueError(f"attack: {name} needs a target: PGD(...)(f, x, y, threat, target=3), or labels=(y, target).")
    return objective


class Probe:
    """Evaluates points of the samples `at` (their indices in `found`), `passes` times each."""

    def __init__(self, victim: Victim, objective: Fitted, found: Strongest, passes: int = 1) -> None:
        self.victim = victim
        self.objective = objective
        self.found = found
        self.passes = passes
        self._fresh = True

    @classmethod
    def of(cls, victim: Victim, rows: Rows, objective: Objective, passes: int = 1) -> Probe:
        """A probe with empty results."""
        return cls(victim, Fitted(aim_objective(objective, rows), rows.y, rows.target), Strongest(rows), passes)

    def slope(self, rows: Rows, x_adv: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(loss, gradient, logits); the first call marks samples whose gradient is zero."""
        loss, grad, logits = self.victim.value_and_grad(
            x_adv, self.objective, *rows.labels, lengths=rows.lengths, passes=self.passes
        )
        good, loss, grad = finite(loss, grad, logits)
        if good is not None:
            self.found.non_finite[at] |= ~good
        if self._fresh:
            good = torch.ones_like(at, dtype=torch.bool) if good is None else good
            flat = (rows.threat.masked(grad).flatten(1) == 0).all(1)
            self.found.zero_gradient[at] |= good & flat & ~self.objective.saturated(loss)
            self._fresh = False
        self.found.count(at, self.passes)
        return loss, grad, logits

    def value(self, rows: Rows, x_adv: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, logits), without a gradient."""
        outputs = [self.victim.forward(x_adv, rows.lengths) for _ in range(self.passes)]
        logits = torch.stack(outputs).mean(0) if self.passes > 1 else outputs[0]
        good, loss, _ = finite(self.objective(logits, *rows.labels), torch.zeros_like(x_adv), logits)
        if good is not None:
            self.found.non_finite[at] |= ~good
        self.found.count(at, self.passes, backward=False)
        return loss, logits

    def offer(self, rows: Rows, x_adv: Tensor, at: Tensor) -> Tensor:
        """The loss there; the points are recorded where they are the strongest so far."""
        loss, logits = self.value(rows, x_adv, at)
        self.found.offer(at, x_adv, loss, logits)
        return loss

    def result(self, name: str) -> AttackResult:
        return self.found.result(name, self.objective.notes)


def finite(loss: Tensor, grad: Tensor, logits: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """(good, loss, grad): where NaN or infinity occurs, the loss is -inf and the gradient 0, so no step follows it.

    `good` is None if all are finite, usually detected by three sums, which one bad number makes non-finite.
    """
    if bool(torch.isfinite(grad.sum() + logits.sum() + loss.sum())):
        return None, loss, grad
    outputs = logits.flatten(1) if logits.dim() > 1 else logits[:, None]  # one real number per sample may come as (b,)
    sound = torch.isfinite(loss) & torch.isfinite(outputs).all(1)
    good = sound & torch.isfinite(grad.flatten(1).abs().amax(1))
    return good, torch.where(sound, loss, -torch.inf), where_rows(good, grad, torch.zeros_like(grad))


def where_rows(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """new for the samples in the mask (b,), old for the others."""
    return torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)
