"""Layers alone on a GPU: one operation from parameters to output, in float32 and under autocast, against float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYERS = [S4D, DSS, EMA, S4, S5, LRU, S6, RGLRU]
CLOSE = {False: 1e-3, True: 3e-2}


def _run(layer: Any, x: Tensor, state: Any, lengths: Tensor | None, half: bool) -> list[Tensor]:
    """y, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        y, _ = layer(x, state, lengths)
    weights = torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape).to(y.dtype)
    trained = [p for p in layer.parameters() if p.requires_grad]
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *trained])]


def _assert_near(found: list[Tensor], want: list[Tensor], most: float) -> None:
    for i, (g, w) in enumerate(zip(found, want, strict=True)):
        assert bool((g.double() - w.double()).norm() <= most * w.double().norm()), i


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("length", [1, 100, 256, 1000])
@pytest.mark.parametrize("kind", LAYERS, ids=lambda k: k.__name__)
def test_values_and_gradients(kind: Any, length: int, half: bool) -> None:
    torch.manual_seed(0)
    layer = kind(24).cuda()
    x = torch.randn(3, length, 24, device="cuda")
    want = _run(copy.deepcopy(layer).double(), x.double(), None, None, False)
    for _ in range(3):  # recorded the second time, replayed the third
        _assert_near(_run(layer, x, None, None, half), want, CLOSE[half])


@pytest.mark.parametrize("kind", LAYERS, ids=lambda k: k.__name__)
def test_lengths_chunks_and_frozen(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(8).cuda()
    x, lengths = torch.randn(3, 160, 8, device="cuda"), torch.tensor([160, 75, 1], device="cuda")
    want = _run(copy.deepcopy(layer).double(), x.double(), None, lengths, False)
    _assert_near(_run(layer, x, None, lengths, False), want, CLOSE[False])
    whole, end = layer(x)
    first, state = layer(x[:, :96])
    rest, last = layer(x[:, 96:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=1e-3, atol=1e-4)
    flat = lambda s: [*s.values()] if isinstance(s, dict) else [s]  # noqa: E731
    torch.testing.assert_close(flat(last), flat(end), rtol=1e-3, atol=1e-4)
    with layer.frozen():
        own = x.clone().requires_grad_()
        y, _ = layer(own)
        (slope,) = torch.autograd.grad(y.square().sum(), own)
    again = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(again)[0].square().sum(), again)
    torch.testing.assert_close(slope, wanted, rtol=1e-3, atol=1e-4)
