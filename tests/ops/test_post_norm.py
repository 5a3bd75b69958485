"""The kernels of post-norm blocks in passes that learn nothing, in the interpreter, against float64 autograd."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from helpers import assert_close
from resolvent.lowering.gpu import fused, fused_attack, fused_torch
from resolvent.lowering.gpu.fused_torch import Weights
from resolvent.ops.pointwise import post_norm_check, post_norm_kernels, post_norm_triton, skip_norm_triton
from resolvent.ops.pointwise.post_norm_triton import Block

toeplitz = import_module("resolvent.ops.filter.toeplitz")
skip_norm = import_module("resolvent.ops.pointwise.skip_norm")

EPS = 1e-5


def column(v: Tensor) -> Tensor:
    return v.double()[:, None, None]


def plain(y: Tensor, r: Tensor | None, w: Block) -> Tensor:
    """The same in float64."""
    v = y
    if w.Wa is not None and w.ba is not None:
        v = torch.sigmoid(torch.tensordot(w.Wa.double(), y, 1) + column(w.ba)) * y
    bend = torch.nn.functional.gelu if w.kind == "gelu" else (lambda t: t)
    z = y
    if w.W is not None and w.bias is not None:
        z = bend(torch.tensordot(w.W.double(), bend(v), 1) + column(w.bias))
    if r is not None:
        z = z + (r if w.scale is None else column(w.scale) * r)
    unit = (z - z.mean(0)) / (z.var(0, correction=0) + EPS).sqrt()
    return column(w.gamma) * unit + column(w.beta)


def block(kind: str, d: int, c: int, shift: float) -> Block:
    W, Wa = torch.randn(d, c) / c**0.5, torch.randn(d, d) / d**0.5
    bias, ba, gamma, beta = torch.randn(d), torch.randn(d), 1 + 0.1 * torch.randn(d), shift * torch.randn(d)
    gamma[3] = -gamma[3]
    if kind == "bare":
        return Block(kind, EPS, gamma, beta, scale=torch.randn(d))
    return Block(kind, EPS, gamma, beta, W, bias, None, *((Wa, ba) if kind == "scaled" else ()))


def run(kind: str, shape: tuple[int, int, int], shift: float, still: bool) -> tuple[list[Tensor], list[Tensor], Any]:
    torch.manual_seed(0)
    d, b, l = shape
    c = 3 if kind == "entry" else d
    w = block(kind, d, c, shift)
    y = torch.rand(b, l, c).permute(2, 0, 1) if kind == "entry" else torch.randn(d, b, l)
    r = None if kind == "entry" else torch.randn(d, b, l)
    g = torch.randn(d, b, 1).expand(d, b, l) if still else torch.randn(d, b, l)
    out, kept = post_norm_triton.forward(y, r, w, torch.float32)
    alone, nothing = post_norm_triton.forward(y, r, w, torch.float32, keep=False)
    assert nothing is None
    assert torch.equal(alone, out)
    assert kept is not None
    gz, gy = post_norm_triton.backward(g, kept, w, c)
    assert (gz is None) == (kind == "entry")
    wide = [t.double().requires_grad_() for t in (y, r) if t is not None]
    want = plain(wide[0], wide[1] if len(wide) > 1 else None, w)
    return [out, gy, *([] if gz is None else [gz])], [want, *torch.autograd.grad(want, wide, g.double())], kept


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("shape", [(64, 3, 40), (64, 3, 72), (64, 2, 64), (128, 1, 8)])
@pytest.mark.parametrize("kind", ["plain", "bare", "scaled", "entry"])
def test_against_float64(kind: str, shape: tuple[int, int, int], still: bool) -> None:
    """Whole and broken tiles, tiles of two sequences, and gradients of a mean over time."""
    found, want, _ = run(kind, shape, 0.1, still)
    assert_close(found, want, gradient=True)


@pytest.mark.parametrize("shift", [0.1, 3.0])
def test_unit_is_written_where_out_does_not_tell(shift: float) -> None:
    """With a |beta| above its |gamma|, and then the gradients take it."""
    found, want, kept = run("plain", (64, 3, 40), shift, still=False)
    assert_close(found, want, gradient=True)
    d, m = 64, 120
    factor = kept.numbers[m : m + d]
    assert bool((factor == 1).all()) == (shift > 1)
    if shift > 1:
        var, mean = torch.var_mean(kept.rows[1].double(), 0, correction=0)
        assert float(mean.abs().max()) < 1e-6
        assert float((var - 1).abs().max()) < 1e-3


def test_gelu() -> None:
    """Far below a bf16 step: values to 4e-4 of their norm, gradients to a byte of each slope."""
    found, want, _ = run("gelu", (64, 3, 40), 0.1, still=True)
    for a, b, most in zip(found, want, (4e-4, 4e-3, 4e-4), strict=True):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < most


def test_curve_of_gelu() -> None:
    """x Phi(x) to 3e-4 and its slope to 9e-4 at every x, and exact far out; tanh's unit adds |x| 2^-12 and 2^-10."""
    a, b = float(post_norm_kernels.SLOPE.value), float(post_norm_kernels.CUBE.value)
    x = torch.cat([torch.linspace(-12, 12, 48001), torch.tensor([-300.0, 300.0])]).double().requires_grad_()
    h = torch.tanh(x * (a + b * x * x))
    slope = 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * (a + 3 * b * x * x)
    truth = torch.nn.functional.gelu(x)
    (want,) = torch.autograd.grad(truth.sum(), x)
    assert float((0.5 * x * (1 + h) - truth).abs().max()) < 3e-4
    assert float((slope - want).abs().max()) < 9e-4
    assert torch.equal(slope[-2:].detach(), torch.tensor([0.0, 1.0]).double())


@pytest.mark.parametrize("scaled", [False, True])
def test_skip_and_norm(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`skip_norm` where its parameters stand still; where they learn it takes its own kernels."""
    monkeypatch.setattr(skip_norm, "_triton", lambda *_: skip_norm_triton)
    monkeypatch.setattr(post_norm_triton, "serves", lambda *_: True)
    w = block("bare", 64, 64, 0.1)
    end = skip_norm.Ending(w.gamma, w.beta, w.scale if scaled else None, None, EPS)
    x, y = (torch.randn(64, 2, 36, requires_grad=True) for _ in range(2))
    g = torch.randn(64, 2, 36)
    found, want = skip_norm.skip_norm(x, y, end, 0), skip_norm.plain_skip_norm(x.double(), y.double(), end, 0)
    assert found.grad_fn is not None
    assert found._base is not None  # written beside room for unit
    truth = torch.autograd.grad(want, (x, y), g.double())
    assert_close((found, *torch.autograd.grad(found, (x, y), g)), (want, *truth), gradient=True)


@pytest.mark.parametrize("kinds", [("none", "none", None), ("none", "none", "sigmoid"), ("gelu", "gelu", None)])
def test_blocks_of_an_attack(kinds: tuple[str, str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block and an entry through autograd: with the kernels, as where nothing learns, and in torch's operations."""
    monkeypatch.setattr(post_norm_triton, "serves", lambda *_: True)
    d, (act, final, sigma) = 64, kinds
    W, Wa, v = torch.randn(d, d) / 8, torch.randn(d, d) / 8, torch.randn(4, d)
    more: Any = (Wa, v[3], Wa) if sigma else (None, None, None)
    w = Weights(EPS, act, final, sigma or "none", torch.float32, W, v[0], 1 + v[1] / 9, v[2] / 9, W, *more)
    W = torch.randn(d, 3)
    into = Weights(EPS, "none", "none", "none", torch.float32, W, v[0], 1 + v[1] / 9, v[2] / 9, W, entry=True)
    conv = toeplitz.toeplitz(torch.randn(d, 36) / 6, torch.float32)
    x = torch.rand(2, 36, 3)
    truth, runs = [], []
    for made, kept in ((truth, fused_torch), (runs, fused_attack)):
        monkeypatch.setattr(fused, "_ops", lambda y, w, learn, kept=kept: fused_torch if learn else kept)
        at = x.clone().requires_grad_()
        out = fused.post_norm_block(fused.enter_rows(at, into), conv, w)
        made += [out, *torch.autograd.grad(out.square().sum(), at)]
    assert fused_attack.serves(torch.zeros(d, 2, 36), w)
    assert fused_attack.serves(torch.zeros(3, 2, 36), into)
    for a, b in zip(runs, truth, strict=True):
        most = 4e-3 if act == "gelu" else 1e-5
        assert float((a - b).detach().norm() / b.detach().norm()) < most


@pytest.mark.parametrize("kind", ["plain", "bare", "scaled", "entry"])
def test_what_is_wrong_is_told_from_what_is_right(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check before a first use; the interpreter has no bfloat16 products, so in float32."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.float)
    monkeypatch.setattr(torch, "bfloat16", torch.float32)
    c, here = 3 if kind == "entry" else 64, torch.device("cpu")
    assert post_norm_check.is_right(kind, 64, c, here)
    own = post_norm_triton.backward
    monkeypatch.setattr(post_norm_triton, "backward", lambda *args: (own(*args)[0], 1.03 * own(*args)[1]))
    assert not post_norm_check.is_right(kind, 64, c, here)
