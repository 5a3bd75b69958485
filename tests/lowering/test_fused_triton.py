"""The Triton kernels of fused blocks and Toeplitz products on the CPU, in the interpreter, on tiny shapes."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import assert_close

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the kernels themselves", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
import triton_interpreter  # noqa: F401

from resolvent.lowering.gpu import fused, fused_torch, fused_triton
from resolvent.lowering.gpu.fused_torch import Weights
from resolvent.ops.filter import toeplitz_triton
from resolvent.runtime import chip

toeplitz = import_module("resolvent.ops.filter.toeplitz")


def weights(d: int, c: int, kinds: tuple[str, str, str | None], entry: bool = False) -> Weights:
    act, final, sigma = kinds
    W, Wa = torch.randn(d, c) / c**0.5, torch.randn(d, d) / d**0.5
    bias, gamma, beta, ba = (torch.randn(d) for _ in range(4))
    more: Any = (Wa, ba, Wa) if sigma else (None, None, None)
    return Weights(1e-5, act, final, sigma or "none", torch.float32, W, bias, gamma, beta, W, *more, entry=entry)


def compare(y: Tensor, r: Tensor | None, g: Tensor, w: Weights) -> None:
    (want, kept), (got, made) = fused_torch.forward(y, r, w), fused_triton.forward(y, r, w)
    assert kept is not None
    assert made is not None
    assert_close((got, *made[:2]), (want, *kept[:2]))
    alone, nothing = fused_triton.forward(y, r, w, keep=False)
    assert nothing is None
    assert torch.equal(alone, got)
    for learn in (False, True):
        truth = fused_torch.backward(g, kept, y, w, learn)
        found = fused_triton.backward(g, made, y, w, learn)
        for a, b in zip((*found[:2], *(found[2] or ())), (*truth[:2], *(truth[2] or ())), strict=True):
            if b is not None and (r is not None or a.shape != truth[0].shape):  # an entry has no skip
                assert_close(a, b, gradient=True)


@pytest.mark.parametrize(
    ("d", "b", "l", "kinds"),
    [
        (16, 2, 9, ("none", "none", None)),
        (20, 3, 31, ("gelu", "silu", "relu")),
        (16, 2, 64, ("gelu_tanh", "tanh", "sigmoid")),
        (16, 1, 1, ("tanh", "relu", "tanh")),
        (20, 3, 31, ("gelu", "gelu", None)),
        (16, 2, 33, ("silu", "none", None)),
        (16, 3, 48, ("none", "gelu", None)),
        (16, 2, 32, ("none", "gelu_tanh", None)),
    ],
)
def test_blocks(d: int, b: int, l: int, kinds: tuple[str, str, str | None]) -> None:
    g = torch.randn(d, b, 1).expand(d, b, l) if l in (33, 48, 64) else torch.randn(d, b, l)  # of a mean over time
    compare(torch.randn(d, b, l), torch.randn(d, b, l), g, weights(d, d, kinds))


def test_weights_that_lie_otherwise() -> None:
    """With gaps between their numbers; a matrix that two layers share, or that another library wrote, is transposed."""
    w = weights(16, 16, ("gelu", "none", "sigmoid"))
    names = "W", "low", "Wa", "low_a", "bias", "gamma", "beta", "ba"
    turned = {name: torch.stack(2 * [getattr(w, name)], -1)[..., 0] for name in names}
    y, r, g = torch.randn(3, 16, 2, 9)
    compare(y, r, g, replace(w, **turned).still)


def test_gelu_of_half_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve that stands for GELU in bf16, here in float32: far below the step of bf16, however large x is."""
    d, b, l = 16, 1, 64
    w = replace(weights(d, d, ("gelu", "none", None)), W=torch.eye(d), low=torch.eye(d))
    y = torch.linspace(-40, 40, d * b * l).view(d, b, l)
    y[0, 0], y[1, 0] = torch.linspace(-9, 9, l), torch.linspace(-2, 2, l)
    truth = torch.nn.functional.gelu(y.double())
    monkeypatch.setattr(fused_triton, "KINDS", fused_triton.KINDS | fused_triton.HALF)
    _, kept = fused_triton.forward(y, torch.zeros_like(y), w)
    assert kept is not None
    unit, rstd = kept[:2]
    z = truth.float() + w.bias[:, None, None]
    z = (z - z.mean(0)) * rstd.view(1, b, l)
    assert float(((unit - z) / rstd.view(1, b, l)).abs().max()) < 4e-5
    g = torch.randn(d, b, l)
    gz, gy, _ = fused_triton.backward(g, kept, None, w, learn=False)
    x = y.double().requires_grad_()
    (slope,) = torch.autograd.grad(torch.nn.functional.gelu(x), x, gz.double())
    assert float((gy - slope).abs().max()) < 1.2e-4 * float(gz.abs().max())


@pytest.mark.parametrize(("act", "final"), [("gelu", "relu"), ("sigmoid", "silu"), ("gelu_tanh", "tanh")])
def test_slopes_as_bytes(act: str, final: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept beside bf16 is within half a step of 1/200 of the slope, and exact where that is zero or one."""
    d, b, l = 16, 1, 96
    w, y = weights(d, d, (act, final, None)), torch.linspace(-12, 12, d * b * l).view(d, b, l)
    _, plain = fused_triton.forward(y, y, w)
    monkeypatch.setitem(fused_triton.SLOPES, torch.float32, torch.uint8)
    _, kept = fused_triton.forward(y, y, w)
    assert plain is not None
    assert kept is not None
    for byte, slope, name in zip(kept[2:], plain[2:], (act, final), strict=True):
        assert isinstance(byte, Tensor)
        assert isinstance(slope, Tensor)
        assert byte.dtype == torch.uint8
        step = 0.00125 if name == "sigmoid" else 0.005
        found = (byte.double() - 27) * step
        assert float((found - slope).abs().max()) < 0.501 * step
        assert bool((found[(slope == 0) | (slope == 1)] == slope[(slope == 0) | (slope == 1)]).all())
    g = torch.randn(d, b, l)
    rounded, truth = (fused_triton.backward(g, k, y, w, learn=False) for k in (kept, plain))
    assert torch.equal(rounded[0], truth[0])
    half = (float(w.W.abs().sum(0).max()) + 1) * 0.0026 * float(truth[0].abs().max())  # of a step, in both slopes
    assert 0 < float((rounded[1] - truth[1]).abs().max()) < half * 1.13


@pytest.mark.parametrize(("c", "l"), [(1, 9), (3, 40), (8, 9), (11, 9)])
def test_entry(c: int, l: int) -> None:
    """As sums of few channels, and as a product of matrices."""
    x = torch.randn(2, l, c)
    compare(x.permute(2, 0, 1), None, torch.randn(20, 2, l), weights(20, c, ("none", "none", None), entry=True))


@pytest.mark.parametrize(("b", "l"), [(32, 64), (21, 64), (32, 52), (5, 17), (3, 47)])
@pytest.mark.parametrize("fine", [False, True])
def test_toeplitz_products(b: int, l: int, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tiles and broken ones, rows that start anywhere; tables whole, and as the two halves that float32 takes on
    matrix units."""
    for name in ("SIZE", "ROWS", "DEPTH", "FINE_DEPTH"):
        monkeypatch.setattr(toeplitz_triton, name, 16)
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())
    x, g, k = torch.randn(2, b, l), torch.randn(2, b, l), torch.randn(2, l)
    ahead, back = toeplitz_triton.tables(F.pad(k, (0, -l % 16)), torch.float32, 16, fine)
    want = toeplitz._tables(k, torch.float32, 16)
    read = toeplitz._read_table
    assert_close((read(ahead, l, last=True), read(back, l, last=False)), want)
    y, gx = toeplitz.product(x, want[0], False), toeplitz.product(g, want[1], True)
    assert_close(toeplitz_triton.product(x, ahead, back=False), y)
    assert_close(toeplitz_triton.product(g, back, back=True), gx)
    assert_close(toeplitz_triton.product(g, back, back=True, onto=x.clone()), gx + x)
    for s in (1, 8, 20):  # states of a system in blocks
        h, M = torch.randn(2, b, s), torch.randn(2, l, s)
        assert_close(toeplitz_triton.product(x, ahead, back=False, link=(h, M)), y + h @ M.mT)
        assert_close(toeplitz_triton.product(g, back, back=True, onto=x.clone(), link=(h, M)), gx + x + h @ M.mT)
        assert_close(toeplitz.product(x, ahead, False, link=(h, M)), y + h @ M.mT)
        assert_close(toeplitz.product(g, back, True, x.clone(), link=(h, M)), gx + x + h @ M.mT)
    assert_close(toeplitz.product(x, ahead, False), y)  # torch's products take both kinds of table too
    assert_close(toeplitz.product(g, back, True, onto=x.clone()), gx + x)
    assert_close(toeplitz_triton.kernel_gradient(x, g), toeplitz.kernel_gradient(x, g, 16), gradient=True)


def test_what_leaves_the_states_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sum that is rounded once; the interpreter multiplies float16, not bf16."""
    for name in ("SIZE", "ROWS", "DEPTH"):
        monkeypatch.setattr(toeplitz_triton, name, 16)
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())
    x, k, h, M = (torch.randn(s).half() for s in ((2, 21, 48), (2, 48), (2, 21, 24), (2, 48, 24)))
    ahead, back = toeplitz_triton.tables(k, torch.float16, 16)
    whole = F.pad(k.double(), (47, 0)).unfold(-1, 48, 1).flip(1)
    out = h.double() @ M.double().mT
    for found, want in (
        (toeplitz_triton.product(x, ahead, back=False, link=(h, M)), x.double() @ whole + out),
        (toeplitz_triton.product(x, back, back=True, onto=x.clone(), link=(h, M)), x.double() @ whole.mT + x + out),
    ):
        assert float((found.double() - want).norm() / want.norm()) <= 2.0**-11
    assert toeplitz_triton.linked_agrees(torch.device("cpu"), torch.float16)
    right = toeplitz_triton.product
    monkeypatch.setattr(toeplitz_triton, "product", lambda *t, link=None, **how: right(*t, **how))
    assert not toeplitz_triton.linked_agrees(torch.device("cpu"), torch.float16)


def test_halves_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has eleven binary digits, and both add up to every digit of the table."""
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())
    k = torch.randn(1, 64) * 10.0 ** torch.randint(-20, 20, (1, 64))
    made, whole = toeplitz_triton.tables(k, torch.float32, 16, True), toeplitz._tables(k, k.dtype, 16)
    for table, want in zip(made, whole, strict=True):
        assert torch.equal(table[0].double() + table[1].double(), want.double())
        assert bool((table[0].view(torch.int32) % 0x2000 == 0).all())
        assert bool((table[1].abs() <= want.abs() * 2.0**-11).all())


@pytest.mark.parametrize("act", ["none", "gelu"])
def test_a_first_pass_on_another_chip_is_compared(act: str) -> None:
    """Smaller tiles give the same numbers, and wrong kernels are found out."""
    torch.manual_seed(0)
    w = weights(16, 16, (act, "none", None))
    with chip.stand_in(86):
        assert fused.agrees(fused_triton, w)
        wrong = SimpleNamespace(forward=fused_triton.forward, backward=lambda *a: _scaled(fused_triton.backward(*a)))
        assert not fused.agrees(wrong, w)


def _scaled(found: Any) -> Any:
    gz, gy, slopes = found
    return gz, 1.1 * gy, slopes
