"""The analysis stage: eigenvalues, gains and frequency responses of the trained time-invariant layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis import frequency_response, hinf_norm, poles
from resolvent.experiments.work import Work
from resolvent.layers import Layer
from resolvent.ssm import System

POINTS = 160  # points of a drawn response
EIGENVALUES = 600  # most eigenvalues of a drawn spectrum


def analyse_layers(work: Work) -> dict[str, Any]:
    """One entry for each time-invariant layer of the best checkpoint."""
    model = work.trained("best").double().cpu()
    found = []
    for name, module in model.named_modules():
        if isinstance(module, Layer) and (system := system_of(module)) is not None:
            found.append(layer_facts(name, system))
    return {"layers": found}


def system_of(layer: Layer) -> System | None:
    """The layer's system; None for a selective layer, and for a bidirectional one, which is not causal."""
    make = getattr(layer, "system", None)
    if make is None:
        return None
    try:
        with torch.no_grad():
            made: System = make()
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None
    return made


def layer_facts(name: str, system: System, rtol: float = 1e-6) -> dict[str, Any]:
    """Spectrum, the largest gain of any channel, and the response of that channel."""
    norm = hinf_norm(system, rtol)
    lam = poles(system).reshape(-1)
    gains = norm.upper.reshape(-1)
    worst = int(gains.nan_to_num(math.inf).argmax())
    facts: dict[str, Any] = {
        "name": name,
        "spectrum": _spectrum(name, lam),
        "largest_radius": float(lam.abs().max()),
        "gain": finite(gains[worst]),
        "gain_frequency": finite(norm.frequency.reshape(-1)[worst]),
        "channels": len(gains),
        "channel": worst,
    }
    if facts["gain"] is not None:
        facts["response"] = _response(system, worst, facts)
    return facts


def _spectrum(name: str, lam: Tensor) -> dict[str, Any]:
    shown = lam[:: max(1, math.ceil(len(lam) / EIGENVALUES))]
    message = f"largest |λ| {float(lam.abs().max()):.4f}"
    re, im = shown.real.double().tolist(), (shown.imag if shown.is_complex() else 0 * shown).double().tolist()
    return {"name": name, "caption": message, "plane": "discrete", "re": re, "im": im, "group": [0] * len(re)}


def _response(system: System, channel: int, facts: dict[str, Any]) -> dict[str, Any]:
    """sigma_max of the response over frequency, of one system of the bank."""
    omega = torch.cat([torch.logspace(-3, math.log10(math.pi), POINTS - 1), torch.tensor([facts["gain_frequency"]])])
    omega = omega.double().clamp(1e-4, math.pi).sort().values
    with torch.no_grad():
        G = frequency_response(system, omega)  # (..., p, m, k)
    G = G.reshape(-1, *G.shape[-3:])[channel].movedim(-1, 0)  # (k, p, m)
    size = torch.linalg.matrix_norm(G, 2)
    top = int(size.argmax())
    spike = {"frequency": float(omega[top]), "magnitude": float(size[top])}
    return {"name": f"channel {channel}", "frequency": omega.tolist(), "magnitude": size.tolist(), "spikes": [spike]}


def finite(value: Tensor) -> float | None:
    return float(value) if bool(torch.isfinite(value)) else None
