"""The smoothed model in the certificate stage: certified by votes, attacked through a mean over fixed noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.analysis import SmoothingResult, SmoothingSettings, check_sandwich, smooth
from resolvent.attacks import Threat, autoattack
from resolvent.experiments.cell import CertifyPlan
from resolvent.experiments.work import Work

COPIES = 8  # noisy copies in the mean that the attack maximises


class SoftVote(nn.Module):
    """log mean_k softmax(f(x + sigma n_k)) with the same noise n_k in every call: differentiable for attacks."""

    def __init__(self, f: nn.Module, sigma: float, copies: int = COPIES, seed: int = 0) -> None:
        super().__init__()
        self.f, self.sigma, self.copies, self.seed = f, sigma, copies, seed

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.copies, *x.shape[1:], generator=generator, dtype=torch.float64).to(x)
        noisy = (x[:, None] + self.sigma * noise).flatten(0, 1)
        own = () if lengths is None else (lengths.repeat_interleave(self.copies),)
        each = self.f(noisy, *own).log_softmax(-1)
        return each.unflatten(0, (-1, self.copies)).logsumexp(1) - math.log(self.copies)


def smooth_run(
    work: Work, model: nn.Module, plan: CertifyPlan, x: Tensor, y: Tensor, lengths: Tensor | None = None
) -> dict[str, Any]:
    """Accuracy of the smoothed classifier, its certified share at each radius, and the accuracy under attack.

    The attack moves x; the smoothed classifier then votes there anew. A sample is broken if it confidently predicts
    another class: abstaining does not count.
    """
    assert plan.smoothing is not None
    settings = SmoothingSettings(plan.smoothing, n=plan.copies, seed=work.cell.seed)
    found = smooth(model, x, y, settings, lengths=lengths)
    held = {"sigma": settings.sigma, "n": settings.n, "alpha": settings.alpha, "abstained": found.abstained}
    curve, alive = [], torch.ones(len(y), dtype=torch.bool)
    for radius in sorted(plan.radii):
        if plan.preset is not None:
            alive = alive & _attack_smoothed(work, model, plan.preset, (x, y, lengths), radius, settings)
        robust = None if plan.preset is None else alive & ~_wrong(found, y)
        both = check_sandwich(found.certified(radius).cpu(), robust, found.correct.cpu(), norm="l2", eps=radius)
        curve.append({"radius": radius, "certified": both.certified, "attacked": both.attacked})
    return held | {"clean": found.accuracy, "median_radius": float(found.radius.quantile(0.5)), "curve": curve}


def _attack_smoothed(
    work: Work,
    model: nn.Module,
    preset: str,
    data: tuple[Tensor, Tensor, Tensor | None],
    radius: float,
    votes: SmoothingSettings,
) -> Tensor:
    x, y, lengths = data
    place = work.folder.path / "attack" / f"smoothed-{preset}-l2-{radius:.6g}"
    soft = SoftVote(model, votes.sigma, seed=work.cell.seed)
    threat = Threat("l2", radius, work.task.bounds)
    found = autoattack(soft, x, y, threat, preset, lengths=lengths, seed=work.cell.seed, batch_size=64, folder=place)
    return ~_wrong(smooth(model, found.x_adv.to(x), y, votes, lengths=lengths), y)


def _wrong(found: SmoothingResult, y: Tensor) -> Tensor:
    """Whether another class is predicted; an abstention does not count."""
    return ((found.prediction != y) & (found.prediction >= 0)).cpu()
