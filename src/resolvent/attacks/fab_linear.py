"""FAB's view of the model: at a point, the linear boundary between the label and another class."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks.model import Victim
from resolvent.attacks.objective import targeted_margin

_DUAL = {"linf": 1, "l2": 2, "l1": torch.inf}  # order of the norm in which a gradient measures the distance


def towards(victim: Victim, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(z_t - z_y (b,), its gradient in x, outputs) at x for one target class per sample."""
    return victim.value_and_grad(x, targeted_margin, y, target)


def nearest(victim: Victim, x: Tensor, y: Tensor, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the class whose linearised boundary is nearest: the least |z_j - z_y| / ||grad||, in the dual norm.

    One forward pass and a backward pass for each class; only the best gradient so far is kept, so memory does not grow
    with the number of classes.
    """
    size = victim.batch_size or max(x.shape[0], 1)
    parts = [_nearest(victim, a, b, norm) for a, b in zip(x.split(size), y.split(size), strict=True)]
    gap, grad, logits = (torch.cat(values) for values in zip(*parts, strict=True))
    return gap, grad, logits


def _nearest(victim: Victim, x: Tensor, y: Tensor, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    slopes = _Slopes(victim, x)
    logits = slopes.logits
    own = logits.gather(1, y[:, None]).squeeze(1)
    least = torch.full_like(own, torch.inf)
    gap, grad, sound = torch.zeros_like(own), torch.zeros_like(slopes.x), torch.zeros_like(y, dtype=torch.bool)
    for j in range(logits.shape[1]):
        lead = logits[:, j] - own
        slope = slopes.lead(j, y)
        length = torch.linalg.vector_norm(slope.flatten(1), _DUAL[norm], dim=1)
        distance = torch.where(y == j, torch.inf, lead.abs() / (length + 1e-12))
        nearer, sound = distance < least, sound | torch.isfinite(length)
        least, gap = torch.where(nearer, distance, least), torch.where(nearer, lead, gap)
        grad = torch.where(nearer.view(-1, *[1] * (x.dim() - 1)), slope, grad)
    return torch.where(sound, gap, torch.nan), grad, logits  # NaN: not one class has a usable gradient


class _Slopes:
    """Gradients of differences of outputs from one forward pass."""

    def __init__(self, victim: Victim, x: Tensor) -> None:
        self.victim = victim
        with torch.enable_grad():
            self.leaf = x.detach().requires_grad_()
            self.output = victim._call(self.leaf)
        self.x, self.logits = x.detach(), self.output.detach()

    def lead(self, j: int, y: Tensor) -> Tensor:
        """d (z_j - z_y) / dx."""
        if not self.output.requires_grad:
            return torch.zeros_like(self.x)
        self.victim.backwards += self.x.shape[0]
        picked = torch.zeros_like(self.logits).scatter(1, y[:, None], -1.0)
        picked[:, j] += 1.0
        (grad,) = torch.autograd.grad([self.output], [self.leaf], [picked], retain_graph=True, allow_unused=True)
        return torch.zeros_like(self.x) if grad is None else grad
