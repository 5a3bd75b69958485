"""Impulse responses of the layers of a stack, or their factors, all at once if the layers are alike.

A response takes a few hundred short operations. On a GPU each costs a launch, whatever it computes, so layers
with the same settings are computed together: their parameters stacked, each operation called once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from resolvent.layers.contract import Layer
from resolvent.lowering.program import Filter
from resolvent.ops.blocked import DenseBank, DiagonalBank, links
from resolvent.ops.modes import DenseSource, Source
from resolvent.ssm import bank_response, dplr_response, response
from resolvent.ssm.impulse import impulse

SETTING = (str, int, float, bool, type(None))


def impulse_responses(layers: list[Filter], length: int, half: bool = False) -> list[Tensor]:
    """K (d, length) of every layer in float64, with D = 0; in float32 if a GPU has a kernel for it, which for diagonal
    systems also computes in float32 and is used only for products in `half` precision."""
    if banks := _dplr_sources(layers):
        return dplr_response.make_response(banks, length)
    sources = [_source(layer) for layer in layers] if half else []
    if sources and all(source is not None and response.serves(source) for source in sources):
        return [response.make_response(source, length) for source in sources if source is not None]
    if _can_batch(layers):
        joined = _join_banks(layers, length)
        make: Any = bank_response.make_response if half and bank_response.serves(joined) else impulse
        return list(make(joined, length).unflatten(0, (len(layers), -1)).unbind(0))
    # Lowered forms are never traced, so complex tensors are used.
    return [impulse(layer.module._bank(length, torch.complex), length) for layer in layers]


def _join_banks(layers: list[Filter], length: int) -> DiagonalBank | DenseBank:
    """The channels of all layers, which are alike, as one bank, whose response has one hand-written gradient."""
    banks = list[DiagonalBank | DenseBank]()

    def made(layer: Filter) -> tuple[Tensor, ...]:
        banks.append(layer.module._bank(length))
        return tuple(part for part in vars(banks[0]).values() if part is not None)

    found = _stack(layers, made)
    names = [name for name, part in vars(banks[0]).items() if part is not None]
    return type(banks[0])(**{name: part.flatten(0, 1) for name, part in zip(names, found, strict=True)})


def _source(layer: Filter) -> Source | None:
    """The bank source of a diagonal layer."""
    match layer:
        case Filter(kind="s4d", module=own):
            return own._source(own.C, own.D)
        case Filter(kind="dss", module=own) if own.kernel == "exp":
            return own._source()
    return None


def _dplr_sources(layers: list[Filter]) -> list[DenseSource]:
    """The sources of S4 layers that are alike, if GPU kernels support them; otherwise empty."""
    if any(layer.kind != "s4" for layer in layers) or not alike(layers):
        return []
    sources = [layer.module._source(layer.module.C, layer.module.D) for layer in layers]
    return sources if all(dplr_response.serves(source) for source in sources) else []


def linked_responses(layers: list[Filter], length: int, T: int) -> list[tuple[Tensor, ...]]:
    """The first T steps of K (d, length) of every layer in float64, or as rounded by a kernel, and the matrices linking
    blocks of T steps (`links`) in the layer's dtype."""
    if sources := _dplr_sources(layers):
        return dplr_response.make_links(sources, T)

    def made(layer: Filter) -> tuple[Tensor, ...]:
        bank = layer.module._bank(length)
        return impulse(bank, T), *links(bank, T, layer.module.dtype)

    return together(layers, made) if _can_batch(layers) else [made(layer) for layer in layers]


def _can_batch(layers: list[Filter]) -> bool:
    return len(layers) > 1 and next(layers[0].module.parameters()).is_cuda and alike(layers)


def alike(layers: list[Filter]) -> bool:
    """Whether all are of one class, with the same settings and shapes."""
    return all(_kind(layer.module) == _kind(layers[0].module) for layer in layers)


def together(layers: list[Filter], make: Callable[[Filter], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """`make` applied to each of these layers, which are alike, in one pass over stacked parameters."""
    return list(zip(*(t.unbind(0) for t in _stack(layers, make)), strict=True))


def _stack(layers: list[Filter], make: Callable[[Filter], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    own = [dict(layer.module.named_parameters()) for layer in layers]
    stacked = {f"layer.{name}": torch.stack([p[name] for p in own]) for name in own[0]}
    one = _Made(layers[0], make)
    found: tuple[Tensor, ...] = vmap(lambda p: functional_call(one, p, ()))(stacked)
    return found


class _Made(nn.Module):
    """`make(node)` as a function of the parameters of its layer."""

    def __init__(self, node: Filter, make: Callable[[Filter], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.layer, self.node, self.make = node.module, node, make

    def forward(self) -> tuple[Tensor, ...]:
        return self.make(self.node)


def _kind(layer: Layer) -> tuple[Any, ...]:
    settings = {name: value for name, value in vars(layer).items() if isinstance(value, SETTING) and name != "_holders"}
    return type(layer), settings, [(name, p.shape, p.dtype, p.device) for name, p in layer.named_parameters()]
