"""Packed documents in the Triton scans, in interpreter mode on tiny shapes, against each document alone in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # first: it switches the interpreter on
from linear_cases import multiplier
from packed_cases import linear_alone, marks, selective_alone
from selective_cases import double, draw
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan import triton as linear_triton
from resolvent.ops.linear_scan.packed import forgetting
from resolvent.ops.linear_scan.triton import triton_backward, triton_scan
from resolvent.ops.selective_scan import triton as selective_triton
from resolvent.ops.selective_scan.inputs import Inputs, each

WIDE = {torch.complex64: torch.complex128}


def check_linear(
    start: Tensor, n: int, reverse: bool, narrow: torch.dtype, *, constant: bool = False, time_last: bool = False
) -> None:
    """Values and the gradients of a and b, for start (r, l) or, all rows alike, (1, l)."""
    rows, l = max(2, start.shape[0]), start.shape[1]
    wide, real = WIDE.get(narrow, torch.float64), torch.float32 if narrow.is_complex else narrow
    a = multiplier(*((1, 1) if constant else (rows, l)), n, dtype=wide)
    b, g = torch.randn(2, rows, l, n, dtype=wide)
    h0 = torch.randn(rows, n, dtype=wide)
    leaves = [t.to(narrow).to(wide).requires_grad_() for t in (a, b, h0)]
    want = linear_alone(*leaves, start.expand(rows, l), reverse)
    true = torch.autograd.grad(want, leaves[:2], g.to(narrow).to(wide))
    a, b, h0, g = (t.to(narrow) for t in (a, b, h0, g))
    b = b.mT.contiguous().mT if time_last else b
    reset = forgetting("", start, b.shape[:-1], b.device, reverse)
    h = triton_scan(a, b, h0, reverse, reset)
    assert_close(h.to(wide), want, dtype=real)
    for got, gradient in zip(triton_backward(g, a, h, h0, reverse, reset), true, strict=True):
        assert_close(got.to(wide), gradient, dtype=real, gradient=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("time_last", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_complex(constant: bool, time_last: bool, reverse: bool) -> None:
    check_linear(marks(2, 9), 3, reverse, torch.complex64, constant=constant, time_last=time_last)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_real(narrow: torch.dtype, shared: bool) -> None:
    """bfloat16 in pairs of channels; the marks of each row, and one row of marks for all."""
    check_linear(marks(1 if shared else 3, 7), 4, False, narrow)


@pytest.mark.parametrize("joined", [0, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_time_cut_into_chunks(constant: bool, reverse: bool, joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk without a mark, one with a mark inside, and marks where two chunks meet."""
    monkeypatch.setattr(linear_triton, "_plan", lambda job: linear_triton.Plan(4, 2, 1, 1, 8, -(-job.l // 8), joined))
    start = torch.zeros(2, 26, dtype=torch.bool)
    start[0, [11, 16]] = True
    start[1, [0, 8, 25]] = True
    check_linear(start, 2, reverse, torch.complex64, constant=constant)


def test_gradient_at_a_mark_is_exactly_none() -> None:
    a, b = multiplier(1, 6, 2, dtype=torch.float32), torch.randn(1, 6, 2)
    reset = torch.tensor([[False, False, True, False, True, False]])
    h = triton_scan(a, b, None, False, reset)
    ga, _ = triton_backward(torch.ones_like(h), a, h * 1e30, None, False, reset)
    assert torch.all(ga[:, [2, 4]] == 0)
    assert torch.all(ga[:, [1, 3, 5]] != 0)


def check_selective(x: Inputs, start: Tensor, reverse: bool = False, often: bool = False) -> None:
    """Values and every gradient, from few states or many."""
    wide = double(x)
    y, h = selective_alone(wide, start, reverse)
    gy, gh = (torch.randn_like(t).to(x.u.dtype).double() for t in (y, h))
    leaves = [t for t in wide if t is not None]
    want = torch.autograd.grad((y, h), leaves, (gy, gh), materialize_grads=True)
    x = each(torch.Tensor.detach, x)
    reset = forgetting("", start, x.u.shape[:2], x.u.device, reverse)
    y_found, h_found, saved = selective_triton.forward(x, reverse, True, reset, often=often)
    found = selective_triton.backward(x, saved, gy.to(x.u.dtype), gh.float(), reverse, reset)
    assert_close([y_found.double(), h_found.double()], [y, h], dtype=x.u.dtype)
    for got, true in zip((g for g in found if g is not None), want, strict=True):
        assert_close(got.double(), true, dtype=x.u.dtype, gradient=True)


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_selective(reverse: bool, often: bool) -> None:
    check_selective(draw(2, 9, 3, 3, dtype=torch.float32), marks(2, 9), reverse, often)


def test_selective_over_chunks() -> None:
    """Documents that end where a chunk of 32 does, and inside the next."""
    start = torch.zeros(1, 41, dtype=torch.bool)
    start[0, [5, 32, 38]] = True
    check_selective(draw(1, 41, 2, 2, extras=("h0",), dtype=torch.float32), start)


@pytest.mark.parametrize("often", [False, True])
def test_selective_whole_tiles_in_half_precision(often: bool) -> None:
    check_selective(draw(1, 32, 16, 16, dtype=torch.bfloat16), marks(1, 32), often=often)


def test_selective_eight_steps_to_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two channels to a thread, nothing saved: a word of eight marks."""
    monkeypatch.setattr(selective_triton, "FULL", 1)
    x = each(torch.Tensor.detach, draw(1, 19, 70, 2, extras=("D", "z"), dtype=torch.float32))
    start = marks(1, 19)
    y, h, _ = selective_triton.forward(x, False, False, start)
    assert_close([y.double(), h.double()], list(selective_alone(double(x), start, False)), dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_selective_segments(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 64 steps, the first without a mark: what enters and returns is found first, and stops at marks."""
    triton_interpreter.cut_in_three(monkeypatch)
    start = torch.zeros(1, 161, dtype=torch.bool)
    start[0, [97, 128] if reverse else [70, 130]] = True
    check_selective(draw(1, 161, 2, 2, dtype=torch.float32), start, reverse)


def test_what_the_kernels_do_not_take_runs_in_torch() -> None:
    """More states than a program holds."""
    check_selective(draw(1, 5, 2, selective_triton.MOST_STATES + 1, dtype=torch.float32), marks(1, 5))
