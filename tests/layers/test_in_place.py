"""A user may change an output in place: neither the state nor a gradient is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent import blocks
from resolvent.layers.states import map_state

STREAMING: dict[str, Any] = {
    "s4": rv.S4, "s4d": rv.S4D, "dss": rv.DSS, "s5": rv.S5, "lru": rv.LRU, "l2ru": rv.L2RU, "ema": rv.EMA, "s6": rv.S6,
    "scalar s6": rv.layers.ScalarS6, "rglru": rv.RGLRU, "attention": rv.Attention, "shortconv": rv.ShortConv,
    "gru": blocks.GRU, "mamba": blocks.Mamba, "hawk": blocks.Hawk,
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMING)
def test_a_stream_whose_outputs_are_overwritten(name: str) -> None:
    layer, x = STREAMING[name](4), torch.randn(2, 6, 4)
    with torch.no_grad():
        want, end = layer(x)
        found, state = [], layer.initial_state(2)
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            found.append(y_t.clone())
            y_t.zero_()
        torch.testing.assert_close(torch.stack(found, 1), want, atol=1e-5, rtol=1e-5)
        before = map_state(end, Tensor.clone)
        want.zero_()
        for a, b in zip(torch.utils._pytree.tree_leaves(end), torch.utils._pytree.tree_leaves(before), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", ["s4", "s4d", "dss", "ema"])
def test_the_gradient_through_an_output_changed_in_place(name: str, width: int) -> None:
    layer, x = STREAMING[name](width), torch.randn(2, 300, width, requires_grad=True)
    (want,) = torch.autograd.grad(layer(x)[0].sum(), x)
    (found,) = torch.autograd.grad(layer(x)[0].mul_(2).sum(), x)
    torch.testing.assert_close(found, 2 * want)


def test_one_state_takes_no_perturbation() -> None:
    with pytest.raises(ValueError, match="one state is diagonal and takes no perturbation; leave it out"):
        rv.S5(2, 2, blocks=2, conjugate=False, init="ptd", perturbation=0.1)
