"""What the Triton kernels meet at the limits of a launch: long axes of a grid, far offsets, other strides."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton_interpreter  # noqa: F401

from helpers import assert_close
from resolvent.layers import ema
from resolvent.ops.bank_scan import dense
from resolvent.ops.bank_scan import triton as bank_triton
from resolvent.ops.blocked.tables import DiagonalBank
from resolvent.ops.dplr_bank import operation as dplr
from resolvent.ops.modes import bank_response_triton
from resolvent.ops.modes import triton as modes_triton
from resolvent.ops.modes.dense import DenseSource
from resolvent.ops.selective_scan import triton as selective_triton
from resolvent.runtime import chip
from resolvent.ssm import bank_response
from resolvent.ssm.impulse import impulse

conv_silu = import_module("resolvent.ops.pointwise.conv_silu")

SHORT = 65_535  # programs along every axis of a grid but the first, at most


class Asked:
    """Stands for a kernel, and keeps the grids of its launches."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *_, **__: None


def test_only_the_first_axis_of_a_grid_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    for module in (modes_triton, bank_response_triton):
        monkeypatch.setattr(module, "response_kernel", asked)
    length = 64 * SHORT + 1
    given = [p.detach()[:1] for p in ema.MODES.example()]
    modes_triton.response(ema.MODES.kind, given, length)
    bank_response_triton.response(*torch.zeros(2, 1, 1, 2, dtype=torch.float64).unbind(), length)
    assert len(asked.grids) == 2
    assert all(size <= SHORT for grid in asked.grids for size in grid[1:])


def test_modes_that_lie_otherwise_in_memory() -> None:
    torch.manual_seed(0)
    lam = 0.9 * torch.polar(torch.rand(3, 5).double(), torch.randn(3, 5).double())
    bank = DiagonalBank(lam.mT.contiguous().mT, torch.randn(3, 5, dtype=torch.complex128))
    assert not bank.lam.is_contiguous()
    assert_close(bank_response.make_response(bank, 9), impulse(bank, 9), dtype=torch.float32)


def test_channels_that_lie_far_apart() -> None:
    """Further than 2^31 numbers; memory that nobody touches is none."""
    step = 2**30 + 1
    x = torch.from_numpy(np.zeros(2 * step + 4, np.int8)).as_strided((1, 4, 3), (0, 1, step))
    x.copy_(torch.arange(12).view(1, 4, 3))
    tables = bank_triton.Tables(torch.zeros(3, 16, 18), torch.zeros(3, 16, 18), torch.zeros(3, 2))
    rows = bank_triton._lay_in(x, 1, tables, None)
    assert torch.equal(rows[:, 0, 12:16], x[0].mT.float())


def test_a_wide_dense_state_is_left_to_torch_where_its_matrix_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """144 KiB and more of a program in float32, by the compiler; chips of 8.6, 8.9 and 12.0 give 99."""
    x = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=None, shape=(2, 32, 3), numel=lambda: 192)
    monkeypatch.setattr(dense, "choose", lambda *_: "kernels")
    monkeypatch.setattr(dense, "is_traced", lambda *_: False)
    taken = {}
    for capability in chip.SHARED:
        with chip.stand_in(capability):
            taken[capability] = [dense.serves_dense(x, None, s) for s in (64, 66, 128, 130)]  # type: ignore[arg-type]
            own = [*[None] * 2, SimpleNamespace(**vars(x) | {"shape": (1, 64, 2, 2)})]
            source = DenseSource(None, own, "bilinear", None, ("bilinear",))  # type: ignore[arg-type]
            monkeypatch.setattr(dplr, "choose", lambda *_: "kernels")
            monkeypatch.setattr(dplr, "is_traced", lambda *_: False)
            assert (dplr.kernels_of(source) is not None) == taken[capability][2]
    small = [True, False, False, False]
    assert taken == {c: small if c in (86, 89, 120, 121) else [True, True, True, False] for c in chip.SHARED}


def test_long_and_many_sequences_are_copied_or_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a wide projection, few numbers of which the last lies far from the first; and a batch of very many."""
    far, near = (torch.empty_strided((1, 2**20, 4), (2**20 * step, step, 1), device="meta") for step in (2048, 2047))
    assert selective_triton._dense(far).stride() == (2**22, 4, 1)
    assert selective_triton._dense(near).stride() == near.stride()
    asked: list[Any] = []
    monkeypatch.setattr(conv_silu, "kernels", lambda *given: asked.append(given[-1]))
    for x in (far, near, torch.empty(SHORT, 2, 3), torch.empty(SHORT + 1, 2, 3)):
        conv_silu._triton(x)
    assert asked == ["2^31 numbers or more in a sequence", None, None, "more than 65535 sequences"]
