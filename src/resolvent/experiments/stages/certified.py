"""The certificate stage: a curve of certified accuracy and the attacked one, checked never to cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis import Certificate, certified_gain, certify, check_sandwich
from resolvent.attacks import Threat, autoattack
from resolvent.data import Split
from resolvent.experiments.cell import CertifyPlan
from resolvent.experiments.stages.smoothed import smooth_run
from resolvent.experiments.work import Work
from resolvent.models import TwoTower
from resolvent.models.parts import last_weight

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles of the certified samples for default radii


def certify_run(work: Work) -> dict[str, Any]:
    """Gain, radii and the curve; a model without a finite bound names the component responsible, and has no curve."""
    plan = work.cell.certify
    assert plan is not None
    model, (part, _) = work.trained("best"), work.tested(plan.samples)
    x, y, lengths, n = part.x, part.y, part.lengths, len(part)
    shortest = work.task.length if lengths is None else int(lengths.min())
    head = None if isinstance(model, TwoTower) else last_weight(model.head)
    gain = certified_gain(model.gain_parts(shortest), head=head)
    record: dict[str, Any] = {"gain": gain.value, "samples": n, "parts": gain.as_dict()}
    if plan.smoothing is not None and not (isinstance(model, TwoTower) and lengths is not None):
        record["smoothing"] = smooth_run(work, model, plan, x, y, lengths)
    if gain.value is None or isinstance(model, TwoTower):
        return record | {"reason": gain.explanation, "curve": []}
    found = certify(model, x, y, gain, lengths=lengths)
    plan = plan if plan.radii else replace(plan, radii=own_radii(found))
    upper = attack_at_radii(work, model, plan, part)
    curve = []
    for radius in plan.radii:
        robust = None if upper is None else upper[radius]
        both = check_sandwich(found.certified(radius).cpu(), robust, found.correct.cpu(), norm="l2", eps=radius)
        curve.append({"radius": radius, "certified": both.certified, "attacked": both.attacked})
    median = float(found.radius.quantile(0.5)) if n else 0.0
    return record | {"clean": float(found.correct.double().mean()), "median_radius": median, "curve": curve}


def own_radii(found: Certificate) -> tuple[float, ...]:
    """Radii spread over the certified ones, rounded to two digits; none if nothing is certified."""
    held = found.radius[found.certified(0.0)].sort().values.tolist()
    chosen: Sequence[float] = [held[int(share * (len(held) - 1))] for share in SHARES] if held else []
    return tuple(sorted({_round_down(radius) for radius in chosen}))


def _round_down(radius: float) -> float:
    """Round down to two digits."""
    unit = 10.0 ** (math.floor(math.log10(radius)) - 1)
    return float(f"{math.floor(radius / unit) * unit:.2g}")


def attack_at_radii(work: Work, model: Any, plan: CertifyPlan, part: Split) -> dict[float, Tensor] | None:
    """Which samples resist AutoAttack at each radius; None if no attack is planned. Broken samples stay broken."""
    if plan.preset is None:
        return None
    found, alive = {}, torch.ones(len(part), dtype=torch.bool)
    for radius in sorted(plan.radii):
        threat = Threat("l2", radius, work.task.bounds)
        place = work.folder.path / "attack" / f"certify-{plan.preset}-l2-{radius:.6g}"
        result = autoattack(
            model, part.x, part.y, threat, plan.preset, lengths=part.lengths, seed=work.cell.seed, batch_size=256,
            folder=place,
        )  # fmt: skip
        alive = alive & result.robust.cpu()
        found[radius] = alive
    return found
