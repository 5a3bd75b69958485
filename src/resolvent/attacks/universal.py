"""One perturbation for every input: the same delta added to every sample (Moosavi-Dezfooli et al. 2017).

Found by gradient ascent on the mean objective over a training set, in batches, with delta in the threat's region around
0; evaluated on samples not used to make it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.checks import check_data, gather
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import finite
from resolvent.attacks.objective.objective import Objective, cross_entropy
from resolvent.attacks.rows import check_logits, fit_threat
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted


def capped_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy capped at that of chance plus one nat; above, the gradient is zero."""
    return cross_entropy(logits, y).clamp_max(math.log(logits.shape[1]) + 1.0)


@dataclass(frozen=True)
class UniversalSettings(Counted):
    """epochs over the samples, the batch of a step, and the random seed.

    The objective of a sample is capped: clearly broken samples must not outweigh the unbroken ones.

    Examples:
        >>> rv.attacks.UniversalSettings(epochs=3).epochs
        3
    """

    least: ClassVar[dict[str, int]] = {"epochs": 1, "batch_size": 1, "seed": 0}
    epochs: int = 10
    batch_size: int = 64
    seed: int = 0
    objective: Objective = capped_cross_entropy


@dataclass(frozen=True, eq=False)
class Universal:
    """`delta` satisfies the threat; `apply` adds it, clipped to the bounds and masked.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.attacks.universal(f, (x, y), threat, rv.attacks.UniversalSettings(epochs=1))
        >>> found.delta.shape
        torch.Size([1, 3])
    """

    delta: Tensor  # (1, ...)
    threat: Threat
    loss: float  # mean objective over the samples used to make it

    def apply(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return _add(self.delta, x, fit_threat(self.threat, x, lengths))

    def accuracy(self, f: Callable[..., Tensor], data: Any, batch_size: int = 256) -> float:
        """The accuracy of f on data (x, y) or (x, y, lengths) with delta added."""
        x, y, lengths = gather("Universal", data, None)
        check_data("Universal", x, y)
        victim = Victim(f, batch_size)
        with victim.attacked():
            logits = victim.forward(self.apply(x, lengths), lengths)
        check_logits(logits, y)
        return float((logits.argmax(1) == y).double().mean())


def universal(
    f: Callable[..., Tensor], data: Any, threat: Threat, settings: UniversalSettings | None = None
) -> Universal:
    """The delta that raises the mean objective most over `data`: (x, y), (x, y, lengths), or a loader of such.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> made = rv.attacks.universal(f, (x, y), threat, rv.attacks.UniversalSettings(epochs=1))
        >>> bool(made.delta.abs().max() <= 0.1 + 1e-6)
        True
    """
    how = settings or UniversalSettings()
    x, y, lengths = gather("universal", data, None)
    check_data("universal", x, y)
    _check(threat, lengths)
    victim = Victim(f)
    ascent = _Ascent(victim, (x, y, lengths), threat, how)
    with victim.attacked():
        check_logits(victim.forward(x[:1], None if lengths is None else lengths[:1]), y)
        return ascent.run()


class _Ascent:
    """Ascent with steps that shrink over the epochs; the best end-of-epoch delta is kept."""

    def __init__(
        self, victim: Victim, data: tuple[Tensor, Tensor, Tensor | None], threat: Threat, how: UniversalSettings
    ) -> None:
        self.victim, self.threat, self.how = victim, threat, how
        self.x, self.y, self.lengths = data
        self.fitted = fit_threat(threat, self.x, self.lengths)
        self.home = torch.zeros_like(self.x[:1])
        self.around = replace(threat, bounds=None, mask=None).check(self.home)
        self.region = self.around.around(self.home)

    def run(self) -> Universal:
        best = Universal(self.home, self.threat, self.loss(self.home))
        delta, key = self.home, Draws(self.how.seed, torch.zeros(1, dtype=torch.int64))
        for epoch in range(self.how.epochs):
            order = key.permutation(len(self.x), 0, epoch)[0].to(self.x.device)
            size = self.around.radius(self.home) * 0.5 * (1 - epoch / self.how.epochs)
            for rows in order.split(self.how.batch_size):
                delta = self.region.project(delta + size * self.around.steepest(self.slope(delta, rows)))
            loss = self.loss(delta)
            best = Universal(delta, self.threat, loss) if loss > best.loss else best
        return best

    def slope(self, delta: Tensor, rows: Tensor) -> Tensor:
        """The mean gradient over these samples: (1, ...)."""
        x_adv, y, own, threat = self.part(delta, rows)
        loss, grad, logits = self.victim.value_and_grad(x_adv, self.how.objective, y, lengths=own)
        _, _, grad = finite(loss, grad, logits)
        if threat.norm != "linf":  # entries share one budget: what the bounds cut off would be spent for nothing
            grad = torch.where(x_adv == self.x[rows] + delta, grad, 0.0)
        return threat.masked(grad).mean(0, keepdim=True)

    def loss(self, delta: Tensor) -> float:
        """The mean objective over all samples."""
        total = 0.0
        for rows in torch.arange(len(self.x), device=self.x.device).split(self.how.batch_size):
            x_adv, y, own, _ = self.part(delta, rows)
            total += float(self.how.objective(self.victim.forward(x_adv, own), y).sum())
        return total / len(self.x)

    def part(self, delta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Threat]:
        """(x + delta, y, lengths, threat) of some samples."""
        own = None if self.lengths is None else self.lengths[rows]
        threat = self.fitted.select(rows)
        return _add(delta, self.x[rows], threat), self.y[rows], own, threat


def _add(delta: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """x + delta within the bounds of a threat fitted to x, and where it may act."""
    moved = x + threat.masked(delta.to(x.device, x.dtype).expand(x.shape))
    low, high = threat.box(x)
    return moved if low is None else moved.clamp(torch.minimum(low, x), torch.maximum(high, x))


def _check(threat: Threat, lengths: Tensor | None) -> None:
    if isinstance(threat.eps, Tensor):
        raise ValueError("universal: one delta for all has one eps: a number, or a tuple with one for each channel.")
    if threat.band is not None and (threat.bounds is not None or threat.mask is not None or lengths is not None):
        raise ValueError("universal: what is cut by bounds, masks or lengths leaves its band; give a band alone.")
