"""The Triton kernels under the forms of S5, Mamba and Mega on the CPU, in the interpreter, on tiny shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the kernels themselves", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
import triton_interpreter

from resolvent.lowering import columns
from resolvent.ops.linear_scan import constant, constant_triton
from resolvent.ops.pointwise import biased_silu_triton, conv_silu_triton, feed_forward_triton, skip_norm_triton

biased_silu = import_module("resolvent.ops.pointwise.biased_silu")
conv_silu = import_module("resolvent.ops.pointwise.conv_silu")
feed_forward = import_module("resolvent.ops.pointwise.feed_forward")
skip_norm = import_module("resolvent.ops.pointwise.skip_norm")


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels also for tensors on the CPU, in tiles that tiny shapes do not fill."""
    pairs = (
        (constant, constant_triton),
        (skip_norm, skip_norm_triton),
        (conv_silu, conv_silu_triton),
        (biased_silu, biased_silu_triton),
        (feed_forward, feed_forward_triton),
    )
    for module, quick in pairs:
        monkeypatch.setattr(module, "_triton", lambda *_, found=quick: found)
    monkeypatch.setattr(constant_triton, "STEPS", 16)
    monkeypatch.setattr(skip_norm_triton, "NUMBERS", 64)
    monkeypatch.setattr(biased_silu_triton, "COLUMNS", 16)
    monkeypatch.setattr(conv_silu_triton, "STEPS", 8)
    monkeypatch.setattr(conv_silu_triton, "CHANNELS", 16)


def compare(quick: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Any], still: int = 1) -> None:
    """Values, gradients of all inputs, and those of the first `still` alone, as in an attack."""
    wide = [t.double().requires_grad_() if isinstance(t, Tensor) else t for t in inputs]
    want = plain(*wide)
    g = torch.randn_like(want)
    learnt = [t for t in wide if isinstance(t, Tensor)]
    truth = torch.autograd.grad(want, learnt, g)
    for count in (len(inputs), still):
        own = [t.clone().requires_grad_(i < count) if isinstance(t, Tensor) else t for i, t in enumerate(inputs)]
        asked = [t for t in own if isinstance(t, Tensor) and t.requires_grad]
        got = quick(*own)
        assert_close(got, want)
        for a, b in zip(torch.autograd.grad(got, asked, g.float()), truth, strict=False):
            assert_close(a, b, gradient=True)


@pytest.mark.parametrize(("p", "b", "l"), [(2, 2, 40), (1, 3, 16), (3, 1, 1)])
def test_constant_scan(p: int, b: int, l: int) -> None:
    lam = torch.polar(torch.rand(p) * 0.2 + 0.79, torch.rand(p) * 6)
    inputs = [torch.randn(2 * p, b, l), torch.view_as_real(lam)]
    compare(lambda v, lam: constant.constant_scan(lam, v), lambda v, lam: constant.constant_reference(lam, v), inputs)


@pytest.mark.parametrize("shape", [(6, 2, 13), (16, 3, 8), (5, 1, 1)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("more", [(), ("scale",), ("shift",), ("scale", "shift")], ids="-".join)
def test_skip_norm(shape: tuple[int, int, int], axis: int, more: tuple[str, ...]) -> None:
    d = shape[0]
    x, y = (torch.randn(shape) if axis == 0 else torch.randn(shape).permute(1, 2, 0).contiguous() for _ in range(2))

    def own(function: Any) -> Callable[..., Tensor]:
        def given(x: Tensor, y: Tensor, gamma: Tensor, beta: Tensor, *rest: Tensor) -> Tensor:
            named = dict(zip(more, rest, strict=True))
            w = skip_norm.Ending(gamma, beta, named.get("scale"), named.get("shift"), 1e-5)
            found: Tensor = function(x, y, w, axis)
            return found

        return given

    vectors = [torch.randn(d) for _ in range(2 + len(more))]
    compare(own(skip_norm.skip_norm), own(skip_norm.plain_skip_norm), [x, y, *vectors], still=2)
    time = 2 if axis == 0 else 1  # under a mean over time, whose gradient stands once for all steps
    runs = own(skip_norm.skip_norm), own(skip_norm.plain_skip_norm)
    compare(*(lambda *t, run=run: columns.average(run(*t), time) for run in runs), [x, y, *vectors], still=2)


@pytest.mark.parametrize(("b", "l", "e", "w"), [(2, 19, 20, 4), (1, 2, 3, 4), (2, 8, 16, 2)])
def test_conv_silu(b: int, l: int, e: int, w: int) -> None:
    inputs = [torch.randn(b, l, e), torch.randn(e, w), torch.randn(e)]
    compare(conv_silu.conv_silu, conv_silu.plain_conv_silu, inputs)
    half = torch.randn(b, l, 2 * e)[..., :e]  # one half of a projection
    assert_close(conv_silu.conv_silu(half, *inputs[1:]), conv_silu.plain_conv_silu(half, *inputs[1:]))


@pytest.mark.parametrize("shape", [(3, 2, 13), (2, 1, 1)])
def test_biased_silu(shape: tuple[int, int, int]) -> None:
    inputs = [torch.randn(shape), torch.randn(shape[0])]
    compare(biased_silu.biased_silu, biased_silu.plain_biased_silu, inputs)


@pytest.mark.parametrize(("d", "w", "b", "l"), [(5, 6, 2, 13), (16, 20, 3, 8), (3, 1, 1, 1)])
def test_feed_forward(d: int, w: int, b: int, l: int) -> None:
    def own(function: Any) -> Callable[..., Tensor]:
        def given(x: Tensor, W_up: Tensor, W_down: Tensor, b_up: Tensor, *t: Tensor) -> Tensor:
            end = skip_norm.Ending(t[0], t[1], None, t[2], 1e-5)
            found: Tensor = function(x, W_up, W_down, b_up, end)
            return found

        return given

    inputs = [torch.randn(s) for s in ((d, b, l), (w, d), (d, w), (w,), (d,), (d,), (d,))]
    runs = own(feed_forward.feed_forward), own(feed_forward.plain_feed_forward)
    compare(*runs, inputs)
    compare(*(lambda *t, run=run: columns.average(run(*t), 2) for run in runs), inputs)


@pytest.mark.parametrize("which", ["constant", "norm", "conv", "silu", "feed"])
def test_second_derivatives(which: str) -> None:
    runs: dict[str, tuple[Any, Any, list[Tensor]]] = {
        "constant": (
            constant.constant_scan,
            constant.constant_reference,
            [0.5 * torch.rand(1, 2), torch.randn(2, 1, 5)],
        ),
        "norm": (
            lambda x, y, a, b: skip_norm.skip_norm(x, y, skip_norm.Ending(a, b, None, None, 1e-5), 0),
            lambda x, y, a, b: skip_norm.plain_skip_norm(x, y, skip_norm.Ending(a, b, None, None, 1e-5), 0),
            [torch.randn(4, 1, 3), torch.randn(4, 1, 3), torch.randn(4), torch.randn(4)],
        ),
        "conv": (
            conv_silu.conv_silu,
            conv_silu.plain_conv_silu,
            [torch.randn(1, 5, 3), torch.randn(3, 4), torch.randn(3)],
        ),
        "feed": (
            lambda *t: feed_forward.feed_forward(*t[:4], skip_norm.Ending(t[4], t[5], None, t[6], 1e-5)),
            lambda *t: feed_forward.plain_feed_forward(*t[:4], skip_norm.Ending(t[4], t[5], None, t[6], 1e-5)),
            [torch.randn(s) for s in ((4, 1, 3), (3, 4), (4, 3), (3,), (4,), (4,), (4,))],
        ),
        "silu": (biased_silu.biased_silu, biased_silu.plain_biased_silu, [torch.randn(2, 1, 3), torch.randn(2)]),
    }
    quick, plain, inputs = runs[which]
    found = []
    for function in (quick, plain):
        own = [t.clone().requires_grad_() for t in inputs]
        first = torch.autograd.grad(function(*own).square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(sum((g.square().sum() for g in first), torch.zeros(())), own))
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True)


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_a_kernel_that_does_not_fit_is_replaced(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alike = [(module, fails) for module in (skip_norm_triton, conv_silu_triton, biased_silu_triton)]
    scan = "scan" if fails == "forward" else "adjoint"
    triton_interpreter.refused(monkeypatch, *alike, (constant_triton, scan))
    for _ in range(2):
        test_constant_scan(1, 2, 5)
        test_skip_norm((4, 1, 3), 0, ())
        test_conv_silu(1, 5, 3, 4)
        test_biased_silu((2, 1, 3))
    assert sum("torch takes over" in r.getMessage() for r in caplog.records) == 4  # once for each
