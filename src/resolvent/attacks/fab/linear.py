"""FAB's view of the model: at a point, the linear boundary between the label and another class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from resolvent.attacks.objective.gradient_probe import where_rows
from resolvent.attacks.objective.objective import pick, targeted_margin
from resolvent.attacks.objective.slope import slope
from resolvent.attacks.victim import Victim

_DUAL = {"linf": 1, "l2": 2, "l1": torch.inf}  # order of the dual norm, for distances


@dataclass(frozen=True, eq=False)
class Spots:
    """Points at which the model is evaluated."""

    x: Tensor  # (b, ...)
    y: Tensor  # (b,)
    lengths: Tensor | None  # (b,)
    scale: Tensor | None = None  # (b, ...): points are x + scale v, and gradients are with respect to v; None: x

    def split(self, size: int) -> Iterator[Spots]:
        none = [None] * len(self.x)
        lengths = none if self.lengths is None else self.lengths.split(size)
        scales = none if self.scale is None else self.scale.split(size)
        for x, y, part, scale in zip(self.x.split(size), self.y.split(size), lengths, scales, strict=False):
            yield Spots(x, y, part, scale)


def towards(victim: Victim, spots: Spots, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(z_t - z_y (b,), its gradient, outputs) for one target class per point."""
    gap, grad, logits = victim.value_and_grad(spots.x, targeted_margin, spots.y, target, lengths=spots.lengths)
    return gap, grad if spots.scale is None else grad * spots.scale, logits


def nearest(victim: Victim, spots: Spots, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the class whose linearised boundary is nearest: the least |z_j - z_y| / ||grad||, in the dual norm.

    One forward pass and a backward pass for each class; only the best gradient so far is kept, so memory does not grow
    with the number of classes.
    """
    size = victim.batch_size or max(len(spots.x), 1)
    parts = [victim.recover(partial(_nearest, victim, part, norm)) for part in spots.split(size)]
    gap, grad, logits = (torch.cat(values) for values in zip(*parts, strict=True))
    return gap, grad, logits


def _nearest(victim: Victim, spots: Spots, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    y = spots.y
    with torch.enable_grad():
        x = spots.x.detach().requires_grad_()
        output = victim.call(x, spots.lengths)
    logits = output.detach()
    own = pick(logits, y)
    least = torch.full_like(own, torch.inf)
    gap, grad, sound = torch.zeros_like(own), torch.zeros_like(spots.x), torch.zeros_like(y, dtype=torch.bool)
    for j in range(logits.shape[1]):
        lead = logits[:, j] - own
        start = torch.zeros_like(logits).scatter(1, y[:, None], -1.0)
        start[:, j] += 1.0
        found = slope(output, x, start, keep=True) if output.requires_grad else None  # d (z_j - z_y) / dx
        found = torch.zeros_like(spots.x) if found is None else found
        found = found if spots.scale is None else found * spots.scale
        length = torch.linalg.vector_norm(found.flatten(1), _DUAL[norm], dim=1)
        distance = torch.where(y == j, torch.inf, lead.abs() / (length + 1e-12))
        nearer, sound = distance < least, sound | torch.isfinite(length)
        least, gap = torch.where(nearer, distance, least), torch.where(nearer, lead, gap)
        grad = where_rows(nearer, found, grad)
    victim.backwards += len(y) * logits.shape[1] * output.requires_grad
    return torch.where(sound, gap, torch.nan), grad, logits  # NaN: no class has a usable gradient
