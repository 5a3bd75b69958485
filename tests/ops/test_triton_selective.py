"""The Triton selective scan in interpreter mode, on tiny shapes, against the loop in float64."""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module

import pytest
import selection_cases
import torch
import triton_interpreter  # first: it switches the interpreter on
from selective_cases import ALL, double, draw, slow, with_gradients

from helpers import assert_close
from resolvent.ops.pointwise import conv_silu_triton
from resolvent.ops.selective_scan import kernels
from resolvent.ops.selective_scan import torch as selective_chunked
from resolvent.ops.selective_scan import triton as selective_triton
from resolvent.ops.selective_scan.inputs import Inputs, each, make_steps

conv_silu = import_module("resolvent.ops.pointwise.conv_silu")


def check(x: Inputs, reverse: bool = False, often: bool = False) -> None:
    """Values and every gradient, with the upstream gradients that `with_gradients` draws; from few states or many."""
    (y, h), want = with_gradients(slow, double(x), reverse)
    source = torch.Generator().manual_seed(1)
    gy, gh = (torch.randn(t.shape, generator=source, dtype=torch.float64) for t in (y, h))
    x = each(torch.Tensor.detach, x)
    y_found, h_found, saved = selective_triton.forward(x, reverse, True, often=often)
    gradients = selective_triton.backward(x, saved, gy.to(x.u.dtype), gh.float(), reverse)
    found = [g for g in gradients if g is not None]
    assert y_found.dtype == x.u.dtype
    assert [g.dtype for g in found] == [t.dtype for t in x if t is not None]
    assert_close(y_found.double(), y, dtype=x.u.dtype)
    assert_close(h_found.double(), h, dtype=x.u.dtype)
    for got, true in zip(found, want, strict=True):
        assert_close(got.double(), true, dtype=x.u.dtype, gradient=True)


def check_raw(x: Inputs, reverse: bool = False, into: torch.dtype = torch.float32) -> None:
    """The same where the step is softplus(dt + bias), y is float32 and the gate's gradient goes into a wider row."""
    bias = torch.linspace(-9.0, 2.0, x.u.shape[2]).requires_grad_()
    x = x._replace(dt=(4 * x.dt - 2).detach().requires_grad_())
    wide, wide_bias = double(x), bias.detach().double().requires_grad_()
    y, h = slow(make_steps(wide, wide_bias), reverse)
    gy, gh = torch.cos(y.detach() * 9), torch.sin(h.detach() * 9)
    want = torch.autograd.grad((y, h), [*(t for t in wide if t is not None), wide_bias], (gy, gh))
    x, bias = each(torch.Tensor.detach, x), bias.detach()
    gz = None if x.z is None else torch.zeros(*x.u.shape[:2], 2 * x.u.shape[2], dtype=x.z.dtype).chunk(2, -1)[1]
    y_found, h_found, saved = selective_triton.forward(x, reverse, True, None, bias, into)
    gradients = selective_triton.backward(x, saved, gy.to(into), gh.float(), reverse, None, bias, gz)
    assert y_found.dtype == into
    assert gz is None or gradients[6] is gz
    assert_close(y_found.double(), y, dtype=x.u.dtype)
    assert_close(h_found.double(), h, dtype=x.u.dtype)
    for got, true in zip((g for g in gradients if g is not None), want, strict=True):
        assert_close(got.double(), true, dtype=x.u.dtype, gradient=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_from_a_projection(reverse: bool) -> None:
    check_raw(draw(1, 5, 3, 3, dtype=torch.float32), reverse)
    check_raw(draw(2, 33, 2, 1, extras=(), dtype=torch.float32), reverse)


def test_steps_from_a_projection_in_half_precision() -> None:
    for into in (torch.float32, torch.bfloat16):
        check_raw(draw(1, 32, 16, 16, extras=("D", "z"), dtype=torch.bfloat16), into=into)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_steps_from_a_projection_in_segments(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    triton_interpreter.cut_in_three(monkeypatch)
    check_raw(draw(1, 161, 2, 2, dtype=torch.float32), reverse)


def test_steps_from_a_projection_without_kernels() -> None:
    check_raw(draw(1, 3, 2, selective_triton.MOST_STATES + 1, extras=("D",), dtype=torch.float32))


def _on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {kernels.FORWARD: selective_triton.forward, kernels.BACKWARD: selective_triton.backward}
    other = kernels.choose
    monkeypatch.setattr(kernels, "choose", lambda *a: own[a[0]] if a[3] == torch.float32 else other(*a))
    monkeypatch.setattr(conv_silu, "_triton", lambda *_: conv_silu_triton)
    monkeypatch.setattr(conv_silu_triton, "STEPS", 4)
    monkeypatch.setattr(conv_silu_triton, "CHANNELS", 16)


@pytest.mark.parametrize("name", selection_cases.CASES)
def test_whole_selection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of Mamba's inner pass, and with padding; from few states or many."""
    _on_triton(monkeypatch)
    often = partial(selection_cases.selected_scan, often=name != "all")
    monkeypatch.setattr(selection_cases, "selected_scan", often)
    given = selection_cases.CASES[name]
    selection_cases.compare(given, torch.float32, torch.float32)
    selection_cases.compare(given, torch.float32, torch.float32, selection_cases.padded(given))


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_odd_sizes(reverse: bool, often: bool) -> None:
    check(draw(1, 5, 3, 3, dtype=torch.float32), reverse, often)


@pytest.mark.parametrize("often", [False, True])
def test_more_than_one_chunk(often: bool) -> None:
    check(draw(1, 33, 2, 1, extras=("z",), dtype=torch.float32), often=often)


def test_bare() -> None:
    check(draw(2, 3, 2, 2, extras=(), dtype=torch.float32))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_first_state_cut_from_a_wider_one(reverse: bool) -> None:
    x = draw(2, 5, 3, 4, dtype=torch.float32)
    assert x.h0 is not None
    wide = torch.full((2, 3, 8), torch.nan)
    wide[:, :, :4] = x.h0.detach()
    check(x._replace(h0=wide[:, :, :4].requires_grad_()), reverse)


@pytest.mark.parametrize(("b", "d"), [(0, 3), (2, 0)])
def test_nothing_gives_nothing(b: int, d: int) -> None:
    x = each(torch.Tensor.detach, draw(b, 5, d, 4, dtype=torch.float32))
    y, h, saved = selective_triton.forward(x, False, True)
    assert y.shape == (b, 5, d)
    assert h.shape == (b, d, 4)
    found = selective_triton.backward(x, saved, y, h, False)
    assert [None if g is None else g.shape for g in found] == [None if t is None else t.shape for t in x]


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_whole_tiles_in_half_precision(dtype: torch.dtype, often: bool) -> None:
    """No tail anywhere: no masks, and in bfloat16 B and C in pairs."""
    check(draw(1, 32, 16, 16, dtype=dtype), often=often)


@pytest.mark.slow
@pytest.mark.parametrize(("reverse", "often"), [(False, False), (True, False), (True, True)])
def test_segments(reverse: bool, often: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 64 steps, and a last one of 33: what enters each is found first, backwards in two parts of each."""
    triton_interpreter.cut_in_three(monkeypatch)
    check(draw(1, 161, 2, 2, dtype=torch.float32), reverse, often)


@pytest.mark.slow
def test_many_chunks_in_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five in one; those who find the states again walk two chunks each."""
    monkeypatch.setattr(selective_triton, "_cheapest", lambda *_: 1)
    monkeypatch.setattr(selective_triton, "FULL", 1)
    check(draw(2, 129, 2, 1, extras=("D", "h0"), dtype=torch.float32))


def test_cut_of_the_backward_pass() -> None:
    """Rounds as full as can be, and no segment more than that takes."""
    cuts = [selective_triton.backward_cut(*size, 16) for size in ((256, 1024, 256), (8, 16384, 1024), (1, 65536, 256))]
    assert [(cut.segments, cut.length) for cut in cuts] == [(1, 32), (2, 256), (64, 32)]


def test_saved_states_lie_side_by_side() -> None:
    """(b, chunks, n, d) as everywhere, with n innermost in memory."""
    x = each(torch.Tensor.detach, draw(1, 33, 3, 2, dtype=torch.float32))
    saved = selective_triton.forward(x, False, True)[2]
    assert saved.shape == (1, 2, 2, 3)
    assert saved.mT.is_contiguous()
    assert_close(saved, selective_chunked.forward(x, False, True)[2])


@pytest.mark.parametrize("often", [False, True])
def test_many_sequences(often: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two channels to a thread."""
    monkeypatch.setattr(selective_triton, "FULL", 1)
    check(draw(1, 6, 70, 2, extras=("D", "z"), dtype=torch.float32), often=often)


def test_states_in_front_of_every_tile() -> None:
    """Found on the way forth, or again from those of each chunk: the same numbers, among them those of each chunk."""
    x = each(torch.Tensor.detach, draw(1, 70, 3, 2, dtype=torch.float32))
    few, many = (selective_triton.forward(x, False, True, often=often)[2] for often in (False, True))
    assert many.shape == (1, 18, 2, 3)
    assert_close(many[:, ::8], few)
    found = selective_triton._find_states(x, None, few.mT.contiguous(), False, None)
    assert_close(found.mT, many)


def test_many_states_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch takes over from a kernel that has saved many states."""
    triton_interpreter.refused(monkeypatch, (selective_triton, "_backward"))
    check(draw(1, 70, 3, 2, dtype=torch.float32), often=True)


@pytest.mark.slow
def test_slices_of_one_projection() -> None:
    """u and z side by side in memory, as a projection leaves them, are read where they lie."""
    x = draw(2, 4, 3, 2, dtype=torch.float32)
    pair = torch.cat((x.u, x.z), -1).detach()
    u, z = pair.chunk(2, -1)
    assert selective_triton._dense(u).data_ptr() == u.data_ptr()
    check(x._replace(u=u.requires_grad_(), z=z.requires_grad_()))


def test_too_many_states_run_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    selective_triton._say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "resolvent"):
        for _ in range(2):
            check(draw(1, 3, 2, selective_triton.MOST_STATES + 1, extras=ALL, dtype=torch.float32))
    assert sum("states" in message for message in caplog.messages) == 1


def test_a_dtype_that_is_not_taken() -> None:
    with pytest.raises(TypeError, match="float32"):
        selective_triton.forward(draw(1, 2, 2, 2), False, False)
