"""Layers that a user puts inside a block."""

from __future__ import annotations

from resolvent.layers.contract import Layer


def check_inner(where: str, layer: Layer, channels: int) -> Layer:
    """Require a causal layer with this number of channels."""
    if not isinstance(layer, Layer):
        raise TypeError(f"{where}: expected a layer of this library as ssm, got {type(layer).__name__}.")
    if layer.d_model != channels:
        raise ValueError(f"{where}: expected an ssm of {channels} channels, got one of {layer.d_model}.")
    if layer.bidirectional:
        raise ValueError(f"{where}: expected a causal ssm, got a bidirectional {type(layer).__name__}.")
    return layer
