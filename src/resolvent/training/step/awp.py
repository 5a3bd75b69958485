"""Adversarial weight perturbation: the loss at the worst nearby input and weights.

    min_w  max_{|v_i| <= gamma |w_i|}  E[ l(f_{w+v}(x'), y) ]        Wu, Xia, Wang 2020, eq. 6 to 9

x' is the attack on w; v is one gradient step at x', of length gamma |w_i| in every tensor i of two or more
dimensions; training follows the gradient at w + v.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resolvent.training.objective import Loss
from resolvent.training.step.adversarial import PGDAT, TRADES, Inner
from resolvent.training.step.batch import Batch
from resolvent.training.step.parameter_aliases import put_parameters
from resolvent.usage.numbers import check_positive


@dataclass(frozen=True)
class AWP:
    """An adversarial objective at perturbed weights; see `awp`.

    Examples:
        >>> rv.training.awp(rv.trades(rv.Threat("linf", 0.1)), gamma=0.01).gamma
        0.01
    """

    objective: PGDAT | TRADES
    gamma: float = 5e-3

    @property
    def inner(self) -> Inner:
        return self.objective.inner

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        x_adv = self.objective.find(model, batch)
        worst = self.worst(model, batch, x_adv)
        with put_parameters(model, {p: p + v for p, v in worst.items()}):  # gradients reach p
            return self.objective.at(model, batch, x_adv)

    def worst(self, model: nn.Module, batch: Batch, x_adv: Tensor) -> dict[nn.Parameter, Tensor]:
        """v for every perturbed tensor; none where the gradient vanishes."""
        moved = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]  # a batch counts once in running statistics
        with torch.enable_grad():
            slopes = torch.autograd.grad(self.objective.at(model, batch, x_adv).value, moved, allow_unused=True)
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
            pairs = [(p, g, g.norm()) for p, g in zip(moved, slopes, strict=True) if g is not None]
            return {p: torch.where(size > 0, self.gamma * p.norm() * g / size, 0) for p, g, size in pairs}


def awp(objective: PGDAT | TRADES, gamma: float = 5e-3) -> AWP:
    """`objective`, `pgd_at(threat)` or `trades(threat)`, at the worst weights within gamma of their own size.

    Examples:
        >>> objective = rv.training.awp(rv.pgd_at(rv.Threat("linf", 0.1)), gamma=0.005)
        >>> objective.objective.inner.steps
        10
    """
    if not isinstance(objective, PGDAT | TRADES):
        kind = getattr(objective, "__name__", type(objective).__name__)
        order = "; weigh classes around it: weighted(awp(objective), weights)" if kind == "Weighted" else ""
        raise TypeError(f"awp: expected pgd_at(threat) or trades(threat), got {kind}{order}.")
    check_positive("awp", gamma=gamma)
    return AWP(objective, gamma)
