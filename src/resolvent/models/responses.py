"""Impulse responses of the layers of a stack, or what stands for them, all at once where they are of one kind.

A response is made by a few hundred short operations. On a GPU each costs its launch, whatever it computes, so layers
with the same settings are mapped over together: their parameters stacked, the operations called once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from resolvent.layers import s4d_response
from resolvent.layers.contract import Layer
from resolvent.layers.dss import DSS
from resolvent.layers.s4d import S4D
from resolvent.ssm.block_tables import DenseBank, DiagonalBank, links
from resolvent.ssm.impulse import impulse

SETTING = (str, int, float, bool, type(None))


def impulse_responses(layers: list[Layer], length: int) -> list[Tensor]:
    """K (d, length) of every layer in float64, D at its place zero."""
    if _at_once(layers):
        return [k for (k,) in together(layers, lambda layer: (_of_bank(layer, length),))]
    return [response(layer, length) for layer in layers]


def linked_responses(layers: list[Layer], length: int, T: int) -> list[tuple[Tensor, ...]]:
    """The first T steps of K (d, length) of every layer in float64, and what leads from T steps to the next (`links`)
    in the layer's dtype."""

    def made(layer: Any) -> tuple[Tensor, ...]:
        bank = _bank(layer, length)
        return impulse(bank, T), *links(bank, T, layer.dtype)

    return together(layers, made) if _at_once(layers) else [made(layer) for layer in layers]


def _at_once(layers: list[Layer]) -> bool:
    return len(layers) > 1 and layers[0].anchor.is_cuda and alike(layers)


def response(layer: Any, length: int) -> Tensor:
    """In one call where that is compiled, else from the layer's bank."""
    if isinstance(layer, S4D):
        quick = s4d_response.response(layer, length, lambda *own: _of_parameters(layer, length, own))
        if quick is not None:
            return quick
    return _of_bank(layer, length)


def _of_bank(layer: Any, length: int) -> Tensor:
    return impulse(_bank(layer, length), length)


def _bank(layer: Any, length: int) -> DiagonalBank | DenseBank:
    found: DiagonalBank | DenseBank = (
        layer._bank(layer.length or length) if isinstance(layer, DSS) else layer._bank()
    )
    return found


def alike(layers: list[Layer]) -> bool:
    """Whether all are of one class, with the same settings and shapes."""
    return all(_kind(layer) == _kind(layers[0]) for layer in layers)


def together(layers: list[Layer], make: Callable[[Any], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """What `make` makes of each of these layers, which are alike, in one pass over stacked parameters."""
    own = [dict(layer.named_parameters()) for layer in layers]
    stacked = {f"layer.{name}": torch.stack([p[name] for p in own]) for name in own[0]}
    one = _Made(layers[0], make)
    found = vmap(lambda p: functional_call(one, p, ()))(stacked)
    return list(zip(*(t.unbind(0) for t in found), strict=True))


class _Made(nn.Module):
    def __init__(self, layer: Layer, make: Callable[[Any], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.layer, self.make = layer, make

    def forward(self) -> tuple[Tensor, ...]:
        return self.make(self.layer)


def _of_parameters(layer: S4D, length: int, own: tuple[Tensor, ...]) -> Tensor:
    named = {f"layer.{name}": p for name, p in zip(s4d_response.NAMES, own, strict=False)}
    (found,) = functional_call(_Made(layer, lambda own: (_of_bank(own, length),)), named, ())
    return found


def _kind(layer: Layer) -> tuple[Any, ...]:
    settings = {name: value for name, value in vars(layer).items() if isinstance(value, SETTING) and name != "_holders"}
    return type(layer), settings, [(name, p.shape, p.dtype, p.device) for name, p in layer.named_parameters()]
