"""Inspecting a model: spectrum, response, gain, memory and Hankel singular values of each time-invariant layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.analysis import hankel_singular_values, time_constants
from resolvent.experiments.stages.analysed import finite, layer_facts
from resolvent.experiments.stages.sites import systems_of
from resolvent.experiments.studies.findings import chart, series
from resolvent.layers import Layer
from resolvent.ssm import DPLR, Dense, Diagonal, System

NONE = "no time-invariant system: it depends on its input, or on the length of the sequence"
POINTS = 300  # of a curve over all modes
RTOL = 1e-4  # of a bracketed gain
TOLERANCE = 1e-3  # of the largest Hankel singular value: smaller ones are negligible


@torch.no_grad()
def inside(model: nn.Module, title: str) -> dict[str, Any]:
    """Facts, spectra and charts; layers without a system are listed with the reason."""
    copy = model.double().cpu().eval()
    layers, skipped = [], []
    for name, module in copy.named_modules():
        if not isinstance(module, Layer) or _holds_layers(module):
            continue
        kind = type(module).__name__
        systems, _ = systems_of(module, name)
        layers += [layer(place, kind, system) for place, system in systems.items()]
        if not systems:
            skipped.append({"name": name, "kind": kind, "reason": NONE})
    return {
        "kind": "model",
        "title": title,
        "lead": _lead(len(layers)),
        "facts": _facts(layers),
        "spectra": [held.pop("spectrum") for held in layers],
        "pseudospectrum": None,
        "charts": [drawn for held in layers for drawn in held.pop("charts")],
        "layers": layers,
        "skipped": skipped,
    }


def _lead(count: int) -> str:
    if not count:
        return "No time-invariant layer: what this model does to a tone depends on its input."
    return "What each time-invariant layer (in each direction) remembers, and how much it amplifies each frequency."


def _holds_layers(module: nn.Module) -> bool:
    """Whether it is a block around layers rather than a layer."""
    return any(isinstance(part, Layer) for part in module.modules() if part is not module)


def layer(name: str, kind: str, system: System) -> dict[str, Any]:
    """Numbers of one layer, its spectrum and its charts, for the channel with the largest gain."""
    found = layer_facts(name, system, RTOL)
    times = time_constants(system).reshape(-1).double().sort().values
    worst = found.pop("channel", 0)
    values = hankel_singular_values(one_of(system, worst)).reshape(-1)
    response = found.pop("response", None)
    top = float(values[0])
    kept = int((values > TOLERANCE * top).sum()) if math.isfinite(top) and top > 0 else None
    record = {
        "kind": kind,
        "worst_channel": worst,
        "time_constants": {q: finite(times[int(f * (len(times) - 1))]) for q, f in QUANTILES.items()},
        "hankel": [finite(v) for v in values],
        "states": system.states,
        "states_that_matter": kept,
    }
    return found | record | {"charts": _charts(name, response, times, values)}


QUANTILES = {"shortest": 0.0, "median": 0.5, "longest": 1.0}


def _charts(name: str, response: dict[str, Any] | None, times: Tensor, values: Tensor) -> list[dict[str, Any]]:
    made = []
    if response is not None:
        drawn = [series(response["name"], response["frequency"], response["magnitude"])]
        marks = [(s["frequency"], s["magnitude"], f"{s['frequency']:.3g}") for s in response["spikes"]]
        title = f"{name}: gain over frequency"
        made.append(chart(title, drawn, ("radians a step", "gain"), log="xy", marks=marks))
    times = times[:: max(1, len(times) // POINTS)]
    share = torch.linspace(0, 1, len(times), dtype=torch.float64)
    made.append(
        chart(f"{name}: memory", [series("modes", share, times)], ("share of the modes", "steps to 1/e"), log="y")
    )
    if bool(torch.isfinite(values).all()):
        order = range(1, len(values) + 1)
        made.append(chart(f"{name}: Hankel singular values", [series("worst channel", order, values, "points")],
                          ("number", "Hankel singular value"), log="y"))  # fmt: skip
    return made


def one_of(system: System, channel: int) -> System:
    """One system of the bank; a MIMO layer is one already."""
    if not system.bank:
        return system

    def pick(t: Tensor, keep: int) -> Tensor:
        own = t.shape[t.dim() - keep :]
        return t.expand(*system.bank, *own).reshape(-1, *own)[channel]

    A = system.A
    form: Dense | Diagonal | DPLR
    if isinstance(A, Diagonal):
        form = Diagonal(pick(A.lam, 1))
    elif isinstance(A, DPLR):
        form = DPLR(pick(A.lam, 1), pick(A.P, 2), pick(A.Q, 2))
    else:
        form = Dense(pick(A.matrix, 2))
    return replace(system, A=form, B=pick(system.B, 2), C=pick(system.C, 2), D=pick(system.D, 2), dt=1.0)


def _facts(layers: list[dict[str, Any]]) -> dict[str, float | None]:
    gains = [held["gain"] for held in layers if held["gain"] is not None]
    return {
        "time-invariant layers": len(layers),
        "largest radius of an eigenvalue": max((held["largest_radius"] for held in layers), default=None),
        "largest gain of a layer": max(gains, default=None),
        "layers without a finite gain": len(layers) - len(gains),
    }
