"""FAB's view of the model: at a point, the linear boundary between the label and another class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import targeted_margin
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
    parts = [_nearest(victim, part, norm) for part in spots.split(size)]
    gap, grad, logits = (torch.cat(values) for values in zip(*parts, strict=True))
    return gap, grad, logits


def _nearest(victim: Victim, spots: Spots, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    slopes, x, y = _Slopes(victim, spots), spots.x, spots.y
    logits = slopes.logits
    own = logits.gather(1, y[:, None]).squeeze(1)
    least = torch.full_like(own, torch.inf)
    gap, grad, sound = torch.zeros_like(own), torch.zeros_like(slopes.x), torch.zeros_like(y, dtype=torch.bool)
    for j in range(logits.shape[1]):
        lead = logits[:, j] - own
        slope = slopes.lead(j, y)
        slope = slope if spots.scale is None else slope * spots.scale
        length = torch.linalg.vector_norm(slope.flatten(1), _DUAL[norm], dim=1)
        distance = torch.where(y == j, torch.inf, lead.abs() / (length + 1e-12))
        nearer, sound = distance < least, sound | torch.isfinite(length)
        least, gap = torch.where(nearer, distance, least), torch.where(nearer, lead, gap)
        grad = torch.where(nearer.view(-1, *[1] * (x.dim() - 1)), slope, grad)
    return torch.where(sound, gap, torch.nan), grad, logits  # NaN: no class has a usable gradient


class _Slopes:
    """Gradients of differences of outputs from one forward pass."""

    def __init__(self, victim: Victim, spots: Spots) -> None:
        self.victim, self.spots = victim, spots
        self._run()
        self.x, self.logits = spots.x.detach(), self.output.detach()

    def _run(self) -> None:
        with torch.enable_grad():
            self.leaf = self.spots.x.detach().requires_grad_()
            self.output = self.victim.call(self.leaf, self.spots.lengths)

    def lead(self, j: int, y: Tensor) -> Tensor:
        """d (z_j - z_y) / dx."""
        if not self.output.requires_grad:
            return torch.zeros_like(self.x)
        self.victim.backwards += self.x.shape[0]
        picked = torch.zeros_like(self.logits).scatter(1, y[:, None], -1.0)
        picked[:, j] += 1.0
        try:
            grad = slope(self.output, self.leaf, picked, keep=True)
        except RuntimeError as error:
            if not self.victim.recovers(error):
                raise
            self._run()
            grad = slope(self.output, self.leaf, picked, keep=True)
        return torch.zeros_like(self.x) if grad is None else grad
