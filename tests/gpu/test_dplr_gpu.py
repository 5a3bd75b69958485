"""S4's tables, responses and passes by their kernels on a GPU, against torch's operations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers import S4
from resolvent.ops import dplr_bank
from resolvent.ops.bank_scan.dense import has_room
from resolvent.ops.blocked.tables import links
from resolvent.ops.dplr_bank import operation
from resolvent.ssm import dplr_response, half_dplr
from resolvent.ssm.impulse import impulse

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES = {
    "legs": {},
    "wide": {"d_state": 128},
    "small": {"d_state": 6, "n_ssm": 2},
    "legt": {"init": "legt", "rank": 2},
}


def _layer(d: int, **how: Any) -> S4:
    torch.manual_seed(0)
    layer = S4(d, **how).cuda()
    if not has_room(layer.C, layer._source(layer.C, layer.D).states):
        pytest.skip("a program of this chip has no room for a matrix of so many states")
    return layer


def _given(layer: S4) -> list[Tensor]:
    return list(layer._source(layer.C, layer.D).parameters)


@pytest.mark.parametrize("case", CASES)
def test_tables(case: str) -> None:
    layer = _layer(8, **CASES[case])
    assert dplr_bank.kernels_of(layer._source(layer.C, layer.D)) is not None
    given = [p.detach() for p in _given(layer)]
    assert operation.agrees(dplr_bank.load(), half_dplr.dense_bank, "bilinear", given, 64)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("linked", [False, True])
def test_responses_and_links(case: str, linked: bool) -> None:
    layer, T = _layer(8, **CASES[case]), 256 if linked else 784
    source = layer._source(layer.C, layer.D)
    made = dplr_response.make_links([source], T)[0] if linked else dplr_response.make_response([source], T)
    bank = half_dplr.dense_bank(_given(layer), "bilinear", torch.complex)
    want = impulse(bank, T), *(links(bank, T, torch.float64) if linked else ())
    assert_close(list(made), list(want), dtype=torch.float32)
    g = [torch.randn_like(t) for t in want]
    slopes = torch.autograd.grad(want, _given(layer), g)
    for x, y in zip(torch.autograd.grad(made, _given(layer), [t.float() for t in g]), slopes, strict=True):
        assert_close(x, y, gradient=True)


def test_kernels_of_a_step_are_few() -> None:
    """Tables of four and their gradients took some eight hundred. What fills memory here, for a test, is none."""
    layer = _layer(8)
    given = _given(layer)
    kernels = dplr_bank.load()

    def both() -> None:
        tables = kernels.make_tables(given, 64, False, torch.float32)
        kernels.parameter_gradients(given, torch.zeros(8, 128, 128, device="cuda"), 64, False)
        assert tables.dense

    both()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        both()
        torch.cuda.synchronize()
    ran = [e for e in seen.key_averages() if e.self_device_time_total and "fill" not in e.key.lower()]
    assert 0 < sum(e.count for e in ran) <= 9
