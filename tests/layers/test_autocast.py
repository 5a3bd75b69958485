"""`backward()` inside of autocast: the layers' own backward passes keep their dtype there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers import DSS, EMA, S4D
from resolvent.layers.contract import Layer

LAYERS: dict[str, Callable[[], Layer]] = {
    "S4D": lambda: S4D(3, 8),
    "S4D, both directions": lambda: S4D(3, 8, bidirectional=True),
    "DSS": lambda: DSS(3, 4),
    "EMA": lambda: EMA(3, 4),
}


def gradients(layer: Layer, x: Tensor, inside: bool) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16) if inside else nullcontext():
        layer(x)[0].square().sum().backward()
    found = [x.grad, *(p.grad for p in layer.parameters())]
    layer.zero_grad()
    return [g for g in found if g is not None]


@pytest.mark.parametrize("length", [128, 131])
@pytest.mark.parametrize("name", LAYERS)
def test_backward_inside_of_autocast_gives_the_gradients_of_float32(name: str, length: int) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[name](), torch.randn(2, length, 3)
    inside, outside = gradients(layer, x, True), gradients(layer, x, False)
    assert_close(inside, outside, gradient=True)
