"""Layers on a device that has no float64 (Metal): not one number of a pass, or back, is wider than float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import assert_close
from resolvent import blocks
from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6, Attention
from resolvent.runtime.transforms import without_float64
from resolvent.scan import use

WIDE = (torch.float64, torch.complex128)
CASES = [
    *(S4D(4, 6), S4D(4, 6, discretisation="bilinear"), S4(4, 4), DSS(4, 3), DSS(4, 3, kernel="softmax"), EMA(4, 3)),
    *(S5(4, 6), LRU(4, 3), S6(4, 3), RGLRU(4), Attention(4), blocks.Mamba(4)),
]


class Refuse(TorchDispatchMode):
    """Raises where a calculation gives float64, as a device without it does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        wide = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.dtype in WIDE]
        if wide and wide[0].device.type != "meta":
            raise TypeError(f"{func} gives {wide[0].dtype}, which this device does not have")
        return found


def test_the_mode_refuses() -> None:
    with Refuse(), pytest.raises(TypeError, match="float64"):
        torch.ones(2).double()


@pytest.mark.parametrize("layer", CASES, ids=lambda layer: type(layer).__name__)
def test_passes_stay_in_float32(layer: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 70, 4, requires_grad=True)
    want = layer(x)[0]
    slope = torch.autograd.grad(want.sum(), x)[0]
    with use("torch"), without_float64(), Refuse():
        got = layer(x)[0]
        found = torch.autograd.grad(got.sum(), x)[0]
        layer(x[:, :5], lengths=torch.tensor([5, 3]))
        state = layer.initial_state(2)
        for x_t in x[:, :3].detach().unbind(1):
            _, state = layer.step(x_t, state) if not _needs_length(layer) else (None, None)
    assert_close(got, want, tolerance=1e-3)
    assert_close(found, slope, tolerance=1e-3)


def _needs_length(layer: Any) -> bool:
    return isinstance(layer, DSS) and layer.kernel == "softmax"
