"""Attribution of a trained model: what each component does to the difference that an attack makes, in train and test.

Figures 3 and 4 of the study of deep SSMs under adversarial training (Qi et al. 2024): samples of both splits, attacked
by the PGD-10 that measured the run.
"""

from __future__ import annotations

from typing import Any

import torch

from resolvent.analysis import attribution
from resolvent.attacks import Draws, Victim
from resolvent.data import Split, Task
from resolvent.experiments.goal import Goal
from resolvent.models import Model, TwoTower, components_of

SAMPLES = 256


def attributed(
    model: Model | TwoTower, task: Task, goal: Goal, seed: int = 0, samples: int = SAMPLES
) -> dict[str, Any]:
    """{"samples", "eps", "components": [{"name", "train": {"mse", "kl"}, "test": ...}]}: mean changes in per cent."""
    if goal.eps is None or task.vocabulary is not None or task.classes is None:
        raise ValueError("attribution needs a classifier of real inputs and a run that names the eps of its attack.")
    found = {name: _changes(model, split, task, goal, seed, samples) for name, split in _parts(task).items()}
    names = list(found["train"])
    components = [{"name": name, "train": found["train"][name], "test": found["test"][name]} for name in names]
    return {"samples": samples, "eps": goal.eps, "norm": goal.norm, "components": components}


def _parts(task: Task) -> dict[str, Split]:
    return {"train": task.train, "test": task.test}


def _changes(
    model: Model | TwoTower, split: Split, task: Task, goal: Goal, seed: int, samples: int
) -> dict[str, dict[str, float | None]]:
    device = next(model.parameters()).device
    part = split.select(torch.arange(min(samples, len(split)))).to(device)
    probe = goal.probe(task.bounds)
    assert probe is not None
    threat = probe.threat if part.lengths is None else probe.threat.with_lengths(part.lengths, part.x.shape[1])
    victim = Victim((lambda x: model(x, part.lengths)) if part.lengths is not None else model)
    with victim.attacked():
        x_adv = probe.attack(victim, part.x, part.y, threat.check(part.x), draws=Draws.of(part.x, seed)).x_adv
    held = attribution(model, part.x, x_adv, components_of(model), lengths=part.lengths)
    return {each.label: {"mse": each.mse.mean, "kl": each.kl.mean} for each in held.components}
