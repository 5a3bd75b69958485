"""The Fourier stage: the trained model's score under tones, at given frequencies and at its own worst one."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from resolvent.analysis import WorstFrequency, worst_frequency
from resolvent.attacks import FourierSettings, fourier_sweep, noises
from resolvent.experiments.stages.sites import sites_of, ssm_layers, step_of, systems_of
from resolvent.experiments.work import Work

RTOL = 1e-3  # of the largest gain: sufficient to place a tone


def sweep_noise(work: Work) -> dict[str, Any]:
    """The sweep of the cell's plan on the best checkpoint."""
    plan = work.cell.fourier
    assert plan is not None
    model, (_, data) = work.trained("best"), work.tested(plan.samples)
    worst = own_worst(model, plan.where) if plan.own else None
    frequencies = [*plan.frequencies, *([] if worst is None else [worst.frequency])]
    sites = sites_of(model) if plan.where == "layers" else []
    how = FourierSettings(work.cell.seed, plan.batch_size, work.task.bounds)
    found = fourier_sweep(model, data, noises(plan.amplitudes, frequencies), sites, how)
    record = {"where": plan.where, "sites": [site.name for site in sites]}
    return found.as_dict() | record | {"own": None if worst is None else asdict(worst)}


@torch.no_grad()
def own_worst(model: nn.Module, where: str = "layers") -> WorstFrequency | None:
    """The tone that one of its time-invariant layers amplifies most, in the time units of the site where it is added.

    None if there is no such layer, or no stable one.
    """
    layers = ssm_layers(model)
    held = {name: systems_of(layer, name)[0] for name, layer in layers.items()}
    places = {place: name for name, own in held.items() for place in own}
    systems = {place: system for own in held.values() for place, system in own.items()}
    found = worst_frequency(systems, rtol=RTOL) if systems else None
    if found is None or found.per_step is None or not math.isfinite(found.gain):
        return None
    steps = torch.as_tensor(step_of(layers[places[found.name]]) if where == "layers" else 1.0).reshape(-1)
    dt = float(steps[found.channel if len(steps) > 1 else 0])
    return replace(found, frequency=found.per_step / dt)
