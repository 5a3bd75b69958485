"""The certificate stage: a curve of certified accuracy with the attacked one above it, checked never to cross."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.analysis import certified_gain, certify, check_sandwich
from resolvent.attacks import Threat, autoattack
from resolvent.experiments.cell import CertifyPlan
from resolvent.experiments.smoothed import smoothed
from resolvent.experiments.work import Work
from resolvent.models import TwoTower
from resolvent.models.parts import last_weight


def certified(work: Work) -> dict[str, Any]:
    """Gain, radii and the curve; a model without a finite bound says which component breaks it, and has no curve."""
    plan = work.cell.certify
    assert plan is not None
    model, split = work.trained("best"), work.task.test
    n = len(split) if plan.samples is None else min(plan.samples, len(split))
    part = split.select(torch.arange(n)).to(work.device)  # unpacks what is kept packed
    x, y, lengths = part.x, part.y, part.lengths
    shortest = work.task.length if lengths is None else int(lengths.min())
    head = None if isinstance(model, TwoTower) else last_weight(model.head)
    gain = certified_gain(model.gain_parts(shortest), head=head)
    told: dict[str, Any] = {"gain": gain.value, "samples": n, "parts": gain.as_dict()}
    if plan.smoothing is not None and lengths is None:
        told["smoothing"] = smoothed(work, model, plan, x, y)
    if gain.value is None or isinstance(model, TwoTower):
        return told | {"reason": gain.explanation, "curve": []}
    found = certify(model, x, y, gain, lengths=lengths)
    upper = None if lengths is not None else attacked(work, model, plan, x, y)
    curve = []
    for radius in plan.radii:
        robust = None if upper is None else upper[radius]
        both = check_sandwich(found.certified(radius), robust, found.correct.cpu(), norm="l2", eps=radius)
        curve.append({"radius": radius, "certified": both.certified, "attacked": both.attacked})
    median = float(found.radius.median()) if n else 0.0
    return told | {"clean": float(found.correct.double().mean()), "median_radius": median, "curve": curve}


def attacked(work: Work, model: Any, plan: CertifyPlan, x: Tensor, y: Tensor) -> dict[float, Tensor] | None:
    """Who withstands AutoAttack at each radius; None when no attack is planned. Nobody returns once broken."""
    if plan.preset is None:
        return None
    found, alive = {}, torch.ones(len(y), dtype=torch.bool)
    for radius in sorted(plan.radii):
        threat = Threat("l2", radius, work.task.bounds)
        place = work.folder.path / "attack" / f"certify-{plan.preset}-l2-{radius:.6g}"
        result = autoattack(model, x, y, threat, plan.preset, seed=work.cell.seed, batch_size=256, folder=place)
        alive = alive & result.robust.cpu()
        found[radius] = alive
    return found
