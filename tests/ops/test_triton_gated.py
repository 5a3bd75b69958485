"""The Triton gated scan in interpreter mode, on tiny shapes, against the recurrence in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # first: it switches the interpreter on
from gated_cases import compare, draw, marked
from torch import Tensor
from triton import jit
from triton import language as tl

from resolvent.ops.gated_scan import operation as gated
from resolvent.ops.gated_scan import triton as gated_triton
from resolvent.ops.gated_scan.inputs import Inputs
from resolvent.ops.gated_scan.operation import gated_scan
from resolvent.ops.gated_scan.triton_kernels import _decay


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "choose", lambda *_: gated_triton)
    monkeypatch.setattr(gated_triton, "ENOUGH", 0)  # in one pass, unless a test says otherwise


def scan(x: Inputs) -> Tensor:
    return gated_scan(*x[:5], **marked(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("start", ["none", "first", "any"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(dtype: torch.dtype, start: str, reverse: bool) -> None:
    """Two channels are left over of a block, and three steps of a tile."""
    compare(scan, draw(2, 7, 6, start=start, reverse=reverse, started=start != "none"), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_whole_tiles_and_odd_channels(dtype: torch.dtype) -> None:
    compare(scan, draw(2, 8, 4, start="first"), dtype)
    compare(scan, draw(1, 8, 4, start="any", reverse=True), dtype)
    compare(scan, draw(3, 5, 3), dtype)
    compare(scan, draw(1, 1, 1, start="first", started=False), dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "start"), [(torch.float32, "any"), (torch.bfloat16, "first")])
def test_time_cut_into_chunks(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, start: str, reverse: bool) -> None:
    monkeypatch.setattr(gated_triton, "ENOUGH", 264)
    x = draw(2, 37, 2, start=start, reverse=reverse)
    assert gated_triton.cut(2, 37, 2, dtype, "forward").chunks == 3
    compare(scan, x._replace(h0=None) if reverse else x, dtype)


def test_many_channels_to_a_row() -> None:
    compare(scan, draw(1, 5, 70, start="first"), torch.bfloat16)
    compare(scan, draw(1, 5, 35), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_channels_to_a_thread(dtype: torch.dtype) -> None:
    assert gated_triton.cut(1, 6, 132, dtype, "backward").per == 4
    compare(scan, draw(1, 6, 132, start="any"), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_with_holes(dtype: torch.dtype) -> None:
    """Strides of every kind, an odd first address and an upstream gradient without memory of its own."""
    p = torch.randn(4, 2, 9, dtype=dtype).permute(1, 2, 0)
    q, x = torch.randn(2, 18, 4, dtype=dtype)[:, ::2], torch.randn(73, dtype=dtype)[1:].view(2, 9, 4)
    rate, h0 = -torch.rand(8)[::2], torch.randn(2, 3, 4, dtype=dtype)[:, 1]
    compare(scan, Inputs(p, q, x, rate, h0), dtype)
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(gated_scan(p, q, leaf, rate, h0).sum(), leaf)
    (want,) = torch.autograd.grad(gated.gated_reference(p, q, leaf, rate, h0).sum(), leaf)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-4)


def test_extremes() -> None:
    """Gates shut and open beyond float32's range, a at 1 and at 0."""
    p = torch.tensor([-1e4, -90.0, -30.0, -12.0, 0.0, 12.0, 30.0, 1e4])[None, :, None].expand(1, 8, 2)
    other, x, rate, h0 = torch.randn(1, 8, 2), torch.randn(1, 8, 2), torch.tensor([-1e-9, -60.0]), torch.randn(1, 2)
    for gates in ((p, other), (other, p)):
        assert all(t.isfinite().all() for t in compare(scan, Inputs(*gates, x, rate, h0), torch.float32))


@jit
def decay_kernel(u, a, gap, N: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, N)
    found = _decay(tl.load(u + i))
    tl.store(a + i, found[0])
    tl.store(gap + i, found[1])


def test_no_cancellation_over_the_whole_range() -> None:
    """a and 1 - a² relative to themselves, log a from -1e-12 to -30; the exponential is as good as its argument."""
    u = -torch.logspace(-12, 1.4771, 4096, dtype=torch.float64).float()
    a, gap = torch.empty_like(u), torch.empty_like(u)
    decay_kernel[(1,)](u, a, gap, N=4096)
    true = u.double()
    assert ((gap / -torch.expm1(2 * true) - 1).abs() <= 4e-7).all()
    assert ((a / torch.exp(true) - 1).abs() <= 1.2e-7 * (1 + true.abs())).all()


def test_second_derivatives() -> None:
    x = draw(1, 5, 2, start="first", dtype=torch.float32)
    found = []
    for function, name in ((gated_scan, "first"), (gated.gated_reference, "start")):
        leaves = [t.clone().requires_grad_() for t in x[:5] if isinstance(t, Tensor)]
        h: Tensor = function(*leaves, **{name: x.start})  # type: ignore[operator]
        first = torch.autograd.grad(h.square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum((f.square().sum() for f in first), torch.zeros(())), leaves))
    for a, c in zip(*found, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


def test_the_same_bits_twice() -> None:
    x = draw(2, 40, 6, start="any", dtype=torch.float32)
    g = torch.randn(2, 40, 6)
    h = gated_triton.forward(x)
    first, second = gated_triton.backward(x, h, g), gated_triton.backward(x, h, g)
    assert all(torch.equal(a, c) for a, c in zip(first, second, strict=True))


@pytest.mark.parametrize("fails", ["_forward", "_backward"])
def test_a_kernel_that_does_not_fit_is_replaced(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    triton_interpreter.refused(monkeypatch, (gated_triton, fails))
    for _ in range(2):
        compare(scan, draw(1, 3, 2), torch.float32)
    assert sum("torch takes over" in r.getMessage() for r in caplog.records) == 1
