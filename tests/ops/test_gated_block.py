"""Mega's gated attention block by its kernels, interpreted on the CPU, against plain operations in float64."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton_interpreter
from torch import Tensor

from helpers import assert_close
from resolvent.ops.attention import column_attention_triton, gated_block_triton
from resolvent.ops.attention.gated_block import Weights
from resolvent.ops.filter.toeplitz import toeplitz
from resolvent.ops.filter.two_sided import TwoSided, plain_two_sided
from resolvent.ops.pointwise import biased_silu_triton
from resolvent.ops.pointwise.skip_norm import Ending

gated_block = import_module("resolvent.ops.attention.gated_block")

SIZES = [(4, 3, 6, 2, 13), (5, 2, 20, 3, 16), (16, 35, 16, 1, 33), (3, 1, 2, 2, 1)]  # d, z, w, b, l


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels also for tensors on the CPU, in tiles that tiny shapes do not fill."""
    monkeypatch.setattr(gated_block, "_triton", lambda x: gated_block_triton)
    for name in ("COLUMNS", "CHANNELS", "STEPS", "TILE", "DEPTH"):
        monkeypatch.setattr(gated_block_triton, name, 16)
    monkeypatch.setattr(gated_block_triton, "NUMBERS", 64)
    for name in ("ROWS", "COLUMNS", "DEEPEST"):
        monkeypatch.setattr(column_attention_triton, name, 16)
    monkeypatch.setattr(biased_silu_triton, "COLUMNS", 16)


def parameters(d: int, z: int, w: int, l: int) -> list[Tensor]:
    shapes = [(d, l), (d, l), (2 * d + z + w, d), (w, d), (d, w), (d,), (z,), (w,), (d,), (w,), (2, z), (2, z)]
    return [torch.randn(s) / (s[-1] ** 0.5 if len(s) > 1 else 1) for s in (*shapes, (2 * l - 1,), (d,), (d,))]


def weights(t: list[Tensor], norm: bool) -> Weights:
    dtype = t[2].dtype
    ema = TwoSided(*(toeplitz(k, dtype, 16) for k in t[:2]))
    return Weights(ema, *t[2:13], Ending(t[13], t[14], None, None, 1e-5) if norm else None)


def gradients(run: Any, inputs: list[Tensor], count: int, g: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    own = [t.clone().requires_grad_(i < count) for i, t in enumerate(inputs)]
    y = run(*own)
    return y, torch.autograd.grad(y, own[:count], g.to(y.dtype), allow_unused=True)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("norm", [True, False])
def test_values_and_gradients(size: tuple[int, ...], norm: bool) -> None:
    """As it stands in a stack with the norm behind it, where h is x, and in one with the norm before."""
    torch.manual_seed(0)
    d, z, w, b, l = size
    first = [torch.randn(d, b, l) for _ in range(1 if norm else 2)]
    inputs = [*first, *parameters(d, z, w, l)[: 15 if norm else 13]]

    def split(*t: Tensor) -> tuple[Any, Tensor, Weights]:
        return (None, t[0], weights([*t[1:]], norm)) if norm else (t[0], t[1], weights([*t[2:]], norm))

    def truth(*t: Tensor) -> Tensor:
        h, x, own = split(*t)
        return gated_block.compose(h, x, own, lambda a: plain_two_sided(a, *own.learned[:2]))

    g = torch.randn(d, b, l)
    want, slopes = gradients(truth, [t.double() for t in inputs], len(inputs), g.double())
    for count in (len(inputs), len(first)):  # all, and as in an attack
        y, found = gradients(lambda *t: gated_block.gated_block(*split(*t)), inputs, count, g)
        assert_close(y, want)
        for i, (a, s) in enumerate(zip(found, slopes, strict=False)):
            assert a is not None, i
            if s.abs().max() > 1e-12:
                assert_close(a, s, gradient=True)
            else:  # of one step there is one weight, which nothing moves: its slope is a rounding, in float64 too
                assert a.abs().max() <= 1e-6, i


def test_no_gradient_of_its_own_sums_what_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices lie side by side in one array from the start: nothing is put together or added afterwards."""
    d, z, w, b, l = SIZES[0]
    own = weights(parameters(d, z, w, l), True).detached()
    x = torch.randn(d, b, l, requires_grad=True)
    y = gated_block.gated_block(None, x, own)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        torch.autograd.grad(y, x, torch.randn_like(y))
    called = {e.key for e in seen.key_averages()}
    assert "aten::cat" not in called
    assert "aten::add_" not in called


@pytest.mark.parametrize("norm", [True, False])
def test_second_derivatives(norm: bool) -> None:
    torch.manual_seed(0)
    d, z, w, b, l = 3, 2, 4, 1, 5
    inputs = [torch.randn(d, b, l), torch.randn(d, b, l), *parameters(d, z, w, l)[: 15 if norm else 13]]
    found = []
    for run in (gated_block.gated_block, lambda h, x, own: gated_block.compose(h, x, own, own.ema)):
        own = [t.clone().requires_grad_() for t in inputs]
        y = run(own[0], own[1], weights(own[2:], norm))
        first = torch.autograd.grad(y.square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(sum((g.square().sum() for g in first), torch.zeros(())), own))
    for got, want in zip(*found, strict=True):
        scale = max(float(want.abs().max()), 1.0)
        assert_close(got / scale, want / scale, gradient=True)


@pytest.mark.parametrize("fails", ["project", "slope"])
def test_a_kernel_that_does_not_fit_is_replaced(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    triton_interpreter.refused(monkeypatch, (gated_block_triton, fails))
    for _ in range(2):
        test_values_and_gradients(SIZES[0], True)
    assert sum("torch takes over" in r.getMessage() for r in caplog.records) == 1


def test_in_half_precision_and_as_a_gpu_asks() -> None:
    """The interpreter multiplies float16, not bf16; kernels that are wrong are found out."""
    sizes, cpu = (16, 8, 24, 24), torch.device("cpu")
    assert gated_block._probe(gated_block_triton, cpu, torch.float16, sizes)
    assert gated_block._probe(gated_block_triton, cpu, torch.float32, sizes)
    for name in ("weigh", "slope", "biased_silu_backward"):
        wrong = SimpleNamespace(**{n: getattr(gated_block_triton, n) for n in gated_block_triton.__all__})
        right = getattr(wrong, name)
        setattr(wrong, name, lambda *t, right=right, **how: twice(right(*t, **how)))
        assert not gated_block._probe(wrong, cpu, torch.float16, sizes), name


def twice(found: Any) -> Any:
    return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found
