"""The gated scan on a GPU: values and gradients against float64, awkward shapes, and the same bits twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.gated_scan import operation as gated
from resolvent.ops.gated_scan.inputs import Inputs
from resolvent.ops.gated_scan.operation import gated_scan
from resolvent.ops.gated_scan.reference import gated_reference
from resolvent.runtime import dispatch
from resolvent.scan import use

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALF, REAL = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _never_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that failed would be replaced; here it must not be."""
    pytest.importorskip("triton", reason="needs triton, which comes with a CUDA build of torch")
    from resolvent.ops.gated_scan import triton as gated_triton

    monkeypatch.setattr(gated_triton, "attempt", lambda key, run, other: run())


def draw(b: int, l: int, d: int, dtype: torch.dtype, start: str = "none", reverse: bool = False) -> Inputs:
    p, q, x = (torch.randn(b, l, d, device="cuda").to(dtype) for _ in range(3))
    rate = 8 * torch.log(torch.linspace(0.9, 0.999, d, device="cuda"))
    first, any_of = torch.arange(b, device="cuda") % 2 == 0, torch.rand(b, l, device="cuda") < 0.1
    flags, h0 = {"none": None, "first": first, "any": any_of}, torch.randn(b, d, device="cuda")
    return Inputs(p, q, x, rate, h0, flags[start], reverse)


def outcome(x: Inputs, g: Tensor, wide: bool = False) -> list[Tensor]:
    given = [t for t in x[:5] if isinstance(t, Tensor)]
    leaves = [t.detach().to(torch.float64 if wide else t.dtype).requires_grad_() for t in given]
    given = [*leaves, *(() if x.h0 is not None else (None,))]
    alone = not wide and x.start is not None and x.start.dim() == 1
    marks = {"first" if alone else "start": x.start, "reverse": x.reverse}
    h = (gated_reference if wide else gated_scan)(*given, **marks)
    return [h.detach(), *torch.autograd.grad(h, leaves, g.to(h.dtype))]


def check(x: Inputs) -> None:
    g = torch.randn_like(x.x)
    got = outcome(x, g)
    with use("torch"):
        want = outcome(x, g, wide=True)
    for i, (found, true) in enumerate(zip(got, want, strict=True)):
        assert_close(found, true, dtype=x.x.dtype, gradient=i > 0)


SHAPES = {
    "rows": [(600, 7, 6, HALF), (256, 64, 256, HALF), (600, 5, 33, REAL), (300, 64, 64, REAL), (300, 70, 132, REAL)],
    "cut": [(1, 65537, 6, HALF), (2, 4096, 128, HALF), (1, 65537, 3, REAL), (3, 1000, 40, REAL), (1, 3001, 260, HALF)],
    "odd": [(2, 33, 5, HALF), (1, 1, 2, HALF), (1, 1, 1, REAL), (2, 2000, 7, HALF)],
}
CASES = [pytest.param(*shape, id=f"{name}-{i}") for name, shapes in SHAPES.items() for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(("b", "l", "d", "dtype"), CASES)
def test_against_float64(b: int, l: int, d: int, dtype: torch.dtype) -> None:
    check(draw(b, l, d, dtype, "first"))


@pytest.mark.parametrize("dtype", [HALF, REAL], ids=["bf16", "float32"])
def test_starts_anywhere_both_directions_and_no_initial_state(dtype: torch.dtype) -> None:
    check(draw(2, 1500, 10, dtype, "any", reverse=True))
    check(draw(300, 40, 10, dtype, "any")._replace(h0=None))


def test_strides_and_an_odd_address() -> None:
    x = draw(2, 50, 6, HALF)
    p = x.p.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    q = torch.zeros(601, device="cuda", dtype=HALF)[1:].view(2, 50, 6).copy_(x.q)
    h0 = torch.randn(2, 3, 6, device="cuda")[:, 1]
    check(x._replace(p=p, q=q, h0=h0))


def test_the_root_and_the_exponential_over_the_whole_range() -> None:
    """Of x = 1 from rest the state is sqrt(1 - a²) / 2, of x = 0 from 1 it is a: log a from -1e-12 to -30."""
    log_a = -torch.logspace(-12, 1.4771, 8192, dtype=torch.float64, device="cuda")
    rate = (2 * log_a).float()
    none, one = torch.zeros(1, 1, 8192, device="cuda"), torch.ones(1, 1, 8192, device="cuda")
    true = rate.double() / 2
    root = 2 * gated_scan(none, none, one, rate).double()[0, 0]
    a = gated_scan(none, none, none, rate, torch.ones(1, 8192, device="cuda")).double()[0, 0]
    assert ((root / torch.sqrt(-torch.expm1(2 * true)) - 1).abs() <= 1e-6).all()
    assert ((a / torch.exp(true) - 1).abs() <= 5e-7 * (1 + true.abs())).all()


def test_the_same_bits_twice() -> None:
    for shape in ((40, 300, 64), (2, 9000, 64)):
        x = draw(*shape, HALF, "first")
        g = torch.randn_like(x.x)
        assert all(torch.equal(a, c) for a, c in zip(outcome(x, g), outcome(x, g), strict=True))


def test_the_kernel_is_chosen() -> None:
    for dtype in (HALF, REAL):
        x = draw(1, 4, 4, dtype)
        assert gated._kernels(x) is not None
        with use("torch"):
            assert gated._kernels(x) is None
        assert dispatch.available("gated_scan", gated.CANDIDATES, torch.device("cuda"), dtype)[0] == "triton"
    assert gated._kernels(draw(1, 4, 4, torch.float64)) is None


def test_second_derivatives() -> None:
    x = draw(1, 6, 4, REAL)
    found = []
    for function, kind in ((gated_scan, REAL), (gated_reference, torch.float64)):
        leaves = [t.to(kind).requires_grad_() for t in (x.p, x.q, x.x)]
        first = torch.autograd.grad(function(*leaves, x.rate.to(kind)).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum((f.square().sum() for f in first), leaves[0].new_zeros(())), leaves))
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True)
