"""PGD as the released code of Qi et al. 2024 runs it, to find out what their MNIST rows measure.

Its random start d0 is added to the image once for good (and cut to [0, 1]) and once more as the first perturbation, so
gradients are taken at clip(clip(x + d0) + d) while clip(x + d) is returned. The cut is differentiated through: where
clip(x + d0) + d lies outside [0, 1] the gradient is zero, and that pixel never moves. On MNIST that is every black
pixel whose start is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import Fitted
from resolvent.attacks.objective.objective import cross_entropy
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.strongest import Strongest
from resolvent.training.objective import Loss
from resolvent.training.step.adversarial import PGDAT, Passes, lowered_step
from resolvent.training.step.batch import Batch, criterion, wide

Forward = Callable[[Tensor], Tensor]


def climb(f: Forward, x: Tensor, y: Tensor, start: Tensor, eps: float, size: float, steps: int) -> Tensor:
    """x (b, ...) in [0, 1] after `steps` sign steps of that attack; `start` has the shape of x, within eps."""
    anchor, delta = (x + start).clamp(0, 1), start
    for _ in range(steps):
        with torch.enable_grad():
            moved = delta.detach().requires_grad_()
            loss = criterion(wide(f((anchor + moved).clamp(0, 1))), y).sum()
            (grad,) = torch.autograd.grad(loss, moved)
        delta = (delta + size * grad.sign()).clamp(-eps, eps)
    return (x + delta).clamp(0, 1)


def start_of(x: Tensor, draws: Draws, eps: float) -> Tensor:
    return eps * (2 * draws.uniform(0, 0, x.shape[1:], x.dtype) - 1)


@dataclass(frozen=True)
class ReleasedPGD(Opened):
    """That attack on a trained model."""

    steps: int = 10
    size: float = 0.04

    @property
    def name(self) -> str:
        return f"released-pgd-{self.steps}"

    def run(self, opening: Opening) -> AttackResult:
        rows, at = opening.rows, opening.everyone
        found, objective = Strongest(rows), Fitted(cross_entropy, rows.y)
        eps = float(rows.threat.radius(rows.x).max())
        start = start_of(rows.x, rows.draws.fold("pgd"), eps)
        x_adv = climb(lambda x: opening.victim.f(x), rows.x, rows.y, start, eps, self.size, self.steps)
        logits = opening.victim.forward(x_adv, None)
        found.offer(at, x_adv, objective(logits, rows.y), logits, latest=True)
        return found.result(self.name, objective.notes)


@dataclass(frozen=True)
class ReleasedPGDAT(PGDAT):
    """Adversarial training on it."""

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        quick = lowered_step(model, batch, self.inner, self.recorded)
        if quick is not None:
            return Loss(*quick)
        model.eval()
        x_adv = self._risen(model, batch)
        model.train()
        output = wide(model(x_adv))
        return Loss(criterion(output, batch.y).mean(), output)

    def recorded(self, f: Passes, batch: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        x_adv = self._risen(f.still, batch)
        output = f.learnt(x_adv)
        return criterion(output, batch.y).mean(), output

    def _risen(self, f: Forward, batch: Batch) -> Tensor:
        eps, size = self.inner.threat.eps, self.inner.step_size
        assert isinstance(eps, float)
        assert size is not None
        return climb(f, batch.x, batch.y, start_of(batch.x, batch.draws, eps), eps, size, self.inner.steps).detach()
