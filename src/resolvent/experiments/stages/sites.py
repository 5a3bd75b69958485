"""Where tones are added in a model of ours: at the input of every state-space layer, at the times of its steps."""

from __future__ import annotations

import math

from torch import Tensor, nn

from resolvent.attacks import Site
from resolvent.init import timestep
from resolvent.layers import Layer
from resolvent.lowering.parts import parts_of
from resolvent.models import components_of
from resolvent.ssm import System


def sites_of(model: nn.Module) -> list[Site]:
    """Every state-space layer of a model of this library, with its time steps."""
    return [Site(layer, step_of(layer), name) for name, layer in ssm_layers(model).items()]


def ssm_layers(model: nn.Module) -> dict[str, Layer]:
    """Name -> layer, in the order of the model."""
    names = [name for name in components_of(model).get("ssm", []) if isinstance(name, str)]
    found = {name: model.get_submodule(name) for name in names}
    return {name: layer for name, layer in found.items() if isinstance(layer, Layer)}


def step_of(layer: Layer) -> float | Tensor:
    """dt per channel (d,); for S5, whose steps are per state, the geometric mean; 1 if there is none."""
    if isinstance(own := getattr(layer, "log_dt", None), Tensor):
        return timestep.positive(own.detach()).reshape(layer.d_model, -1)[:, 0]
    if isinstance(own := getattr(layer, "log_step", None), Tensor):
        return math.exp(float(own.detach().double().mean()))
    return 1.0


def systems_of(layer: Layer, name: str) -> tuple[dict[str, System], str]:
    """Name -> system in float64 without a graph; and the reason if there is none."""
    first = parts_of(layer, name)[0]
    if first.kind == "sum":
        return {part.name: part.system for part in first.parts if part.system is not None}, ""
    if first.system is not None:
        return {name: first.system}, ""
    return {}, first.reason
