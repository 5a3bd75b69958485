"""Attribution of a trained model on its splits as one plain record: the data of Figures 3 and 4 of the study.

record = attribution_record(model, {"train": task.train, "test": task.test}, threat, components_of(model))
json.dumps(record)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from resolvent.analysis.attribution.change import Component
from resolvent.analysis.attribution.measure import Chosen, attribution
from resolvent.attacks import PGD, Attack, Draws, Threat
from resolvent.data.task import Split


def attribution_record(
    model: nn.Module,
    splits: Mapping[str, Split],
    threat: Threat,
    components: Mapping[str, Chosen],
    *,
    attack: Attack | None = None,
    samples: int = 256,
    seed: int = 0,
) -> dict[str, Any]:
    """{"norm", "eps", "attack", "samples", "components"}: one entry per component, with one per split.

    attack   finds the perturbed samples; default PGD-10 from a random start
    samples  number of first samples of each split

    An entry has "mse" and "kl", the change in per cent averaged over layers, and "layers" with both per layer;
    None, with a reason, where a change is meaningless.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=4, layers=1)).eval()
        >>> test = rv.load_task("digits").head(8).test
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.analysis.attribution_record(model, {"test": test}, threat, rv.models.components_of(model))
        >>> sorted(found)
        ['attack', 'components', 'eps', 'norm', 'samples']
    """
    attack = attack or PGD(steps=10)
    if not splits:
        raise ValueError("attribution_record: expected at least one split, e.g. {'test': task.test}, got none.")
    found = {name: _on(model, split, threat, components, attack, samples, seed) for name, split in splits.items()}
    labels = [component.label for component in next(iter(found.values()))]
    rows = {name: dict(zip(labels, parts, strict=True)) for name, parts in found.items()}
    return {
        "norm": threat.norm,
        "eps": float(torch.as_tensor(threat.eps).max()),
        "attack": attack.name,
        "samples": {name: min(samples, len(split)) for name, split in splits.items()},
        "components": [
            {"name": label} | {name: _describe_component(rows[name][label]) for name in rows} for label in labels
        ],
    }


def _on(
    model: nn.Module,
    split: Split,
    threat: Threat,
    components: Mapping[str, Chosen],
    attack: Attack,
    samples: int,
    seed: int,
) -> tuple[Component, ...]:
    device = next((p.device for p in model.parameters()), split.x.device)
    part = split.select(torch.arange(min(samples, len(split)))).to(device)
    padded: dict[str, Any] = {} if part.lengths is None else {"lengths": part.lengths}
    x_adv = attack(model, part.x, part.y, threat, draws=Draws.of(part.x, seed), **padded).x_adv
    return attribution(model, part.x, x_adv, components, **padded).components


def _describe_component(component: Component) -> dict[str, Any]:
    pairs = zip(component.mse.layers, component.kl.layers, strict=True)
    layers = [_layer(mse.where, {"mse": mse.percent, "kl": kl.percent}, mse.reason or kl.reason) for mse, kl in pairs]
    return {"mse": component.mse.mean, "kl": component.kl.mean, "layers": layers}


def _layer(where: str, changes: dict[str, float | None], reason: str) -> dict[str, Any]:
    return {"where": where, **changes} | ({"reason": reason} if reason else {})
