"""Layers of single-input channels on a GPU with matrix units: float32 in longer blocks, against float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.layers import DSS, EMA, S4, S4D
from resolvent.layers.contract import Layer
from resolvent.ssm import blocked

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a CUDA device that copies tiles by descriptor",
)
MAKES: dict[str, Any] = {
    "S4": lambda **more: S4(20, 16, **more),
    "S4D": lambda **more: S4D(20, 64, **more),
    "DSS": lambda **more: DSS(20, 16, **more),
    "EMA": lambda **more: EMA(20, 16, **more),
}


def outcome(layer: Layer, x: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Output and end state; the gradients of x and, as one vector, of the parameters."""
    x = x.clone().requires_grad_()
    y, end = layer(x, None, lengths)
    value = y.square().mean() if end is None else y.square().mean() + (end * end.conj()).real.mean()
    found = torch.autograd.grad(value, [x, *layer.parameters()])
    whole = torch.cat([g.flatten() for g in found[1:]])
    return [y, *([] if end is None else [end])], [found[0], whole]


def compare(layer: Layer, x: Tensor, lengths: Tensor | None = None) -> None:
    assert blocked.steps(x) in blocked.WIDE
    for got, want, tolerance in zip(
        outcome(layer, x, lengths),
        outcome(copy.deepcopy(layer).double(), x.double(), lengths),
        (1e-5, 1e-4),
        strict=True,
    ):
        for a, w in zip(got, want, strict=True):
            error = (a - w).detach().abs().pow(2).sum() / w.detach().abs().pow(2).sum()
            assert float(error.sqrt()) <= tolerance


@pytest.mark.parametrize(("b", "l"), [(1, 65), (3, 128), (2, 1000), (130, 256), (1, 16_385)])
@pytest.mark.parametrize("name", MAKES)
def test_against_float64(name: str, b: int, l: int) -> None:
    torch.manual_seed(0)
    compare(MAKES[name]().cuda(), torch.randn(b, l, 20, device="cuda"))


@pytest.mark.parametrize("name", MAKES)
def test_lengths_and_both_directions(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 300, 20, device="cuda")
    compare(MAKES[name]().cuda(), x, torch.tensor([300, 1, 257, 128], device="cuda"))
    compare(MAKES[name](bidirectional=True).cuda(), x)


@pytest.mark.parametrize("name", MAKES)
def test_frozen(name: str) -> None:
    torch.manual_seed(0)
    layer, x = MAKES[name]().cuda(), torch.randn(2, 512, 20, device="cuda")
    found = []
    for own, at in ((layer, x), (copy.deepcopy(layer).double(), x.double())):
        at = at.clone().requires_grad_()
        with own.frozen():
            found.append(torch.autograd.grad(own(at)[0].square().mean(), at)[0].double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) <= 1e-4
