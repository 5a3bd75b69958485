"""The time-invariant systems of a layer: one, or one for each direction."""

from __future__ import annotations

from resolvent.layers import Layer
from resolvent.lowering.parts import parts_of
from resolvent.ssm import System


def systems_of(layer: Layer, name: str) -> tuple[dict[str, System], str]:
    """Name -> system in float64 without a graph; where there is none, the reason instead."""
    first = parts_of(layer, name)[0]
    if first.kind == "sum":
        return {part.name: part.system for part in first.parts if part.system is not None}, ""
    if first.system is not None:
        return {name: first.system}, ""
    return {}, first.reason
