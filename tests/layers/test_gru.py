"""GRU under the layers' contract, against torch's own cell walked step by step."""

from __future__ import annotations

import agreement
import pytest
import torch

from helpers import assert_close
from resolvent.blocks.gru import GRU


@pytest.mark.parametrize("width", [1, 4])
def test_streams_from_any_cut(width: int) -> None:
    agreement.check_cuts(agreement.jittered(GRU(3, width)))


def test_equals_the_cell_over_the_convolved_input() -> None:
    layer = agreement.jittered(GRU(4, 3))
    assert layer.conv is not None
    x = agreement.inputs(layer, 2, 7)
    cell = torch.nn.GRUCell(4, 4, dtype=torch.float64)
    names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
    for mine, theirs in names.items():
        getattr(cell, mine).data.copy_(getattr(layer.unit, theirs))
    back = torch.nn.functional.pad(x, (0, 0, 2, 0))  # (b, l + 2, d)
    h, want = torch.zeros(2, 4, dtype=torch.float64), []
    for t in range(7):
        u = (back[:, t : t + 3] * layer.conv.weight.mT).sum(1) + layer.conv.bias
        h = cell(u * torch.sigmoid(u), h)
        want.append(h)
    assert_close(layer(x)[0], torch.stack(want, 1))
