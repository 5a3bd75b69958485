"""A step that is NaN or infinite changes nothing before it, nor other samples, in any causal layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import assert_close
from resolvent import blocks
from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Attention, ShortConv

LAYERS: dict[str, Callable[[], Any]] = {
    "S4": lambda: S4(4, 8),
    "S4D": lambda: S4D(4, 8),
    "S4D real": lambda: S4D(4, 8, init="real"),
    "DSS": lambda: DSS(4, 8),
    "S5": lambda: S5(4, 8),
    "LRU": lambda: LRU(4, 8),
    "EMA": lambda: EMA(4, 2),
    "S6": lambda: S6(4, 4),
    "RGLRU": lambda: RGLRU(4),
    "L2RU": lambda: L2RU(4),
    "L2RU contraction": lambda: L2RU(4, form="contraction"),
    "ShortConv": lambda: ShortConv(4),
    "Attention": lambda: Attention(4),
    "Mamba": lambda: blocks.Mamba(4, 4),
    "Hawk": lambda: blocks.Hawk(4),
    "H3": lambda: blocks.H3(4, 4),
    "Mega": lambda: blocks.GatedAttention(4, z=2, hidden=4, d_state=2),
    "Residual": lambda: blocks.Residual(S4D(4, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_before_it_changes(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for l in (9, 130):
        x, lengths = torch.randn(3, l, 4), torch.tensor([l, l, l // 2])
        want = layer(x)[0].detach()
        padded = layer(x, lengths=lengths)[0].detach()
        t = 2 * l // 3
        for value in (torch.nan, torch.inf, -torch.inf):
            spoilt = x.clone()
            spoilt[[0, 2], t, 1] = value  # of the last sample this lies in the padding
            got = layer(spoilt)[0].detach()
            assert_close(got[0, :t], want[0, :t])
            assert_close(got[1], want[1])
            assert not bool(torch.isfinite(got[0, t]).all())
            got = layer(spoilt, lengths=lengths)[0].detach()
            assert_close(got[0, :t], padded[0, :t])
            assert_close(got[1:], padded[1:])


def test_numbers_whose_sum_is_no_number_are_finite() -> None:
    layer = S4D(2, 4)
    x = torch.full((1, 5, 2), 3e38)
    assert not torch.isfinite(x.sum())
    assert torch.equal(layer(x)[0].nan_to_num(), layer(x.clone())[0].nan_to_num())
