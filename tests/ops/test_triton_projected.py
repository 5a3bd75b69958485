"""The scan fused with its products: the Triton kernel on the CPU, in the interpreter, against float64 simulation."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter
from torch import Tensor

from helpers import assert_close
from resolvent.layers.mimo import simulate
from resolvent.ops.projected_scan import operation as projected
from resolvent.ops.projected_scan import triton as projected_triton


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel also for float32 on the CPU, for small batches, in tiles that tiny shapes do not fill."""
    monkeypatch.setattr(projected, "_triton", lambda _: projected_triton)
    monkeypatch.setattr(projected, "FEWEST", 1)
    monkeypatch.setattr(projected, "STATES", (1, 128))
    monkeypatch.setattr(projected_triton, "STEPS", 4)
    monkeypatch.setattr(projected_triton, "STATES", 4)


@pytest.mark.parametrize("turned", [False, True])
def test_what_comes_back_beside_the_scan_is_added(turned: bool) -> None:
    given = inputs(5, 2, 21, 3)
    wide = [t.double().requires_grad_() for t in given]
    g, beside = torch.randn(5, 2, 21, dtype=torch.float64), torch.randn(5, 2, 21, dtype=torch.float64)
    if turned:  # laid out otherwise than the gradient that it is added to
        beside = beside.mT.contiguous().mT
    truth = torch.autograd.grad((simulated(*wide), wide[3]), wide, (g, beside))
    own = [t.clone().requires_grad_() for t in given]
    got = torch.autograd.grad(projected.fork_scan(*own), own, (g.float(), beside.float()))
    for a, c in zip(got, truth, strict=True):
        assert_close(a, c, gradient=True)
    x = given[3].clone().requires_grad_()
    both = projected.fork_scan(*given[:3], x)
    found = torch.autograd.grad(both, x, (g.float(), beside.float()), retain_graph=True)[0]
    assert_close(found, truth[3], gradient=True)
    assert torch.equal(torch.autograd.grad(both[1], x, beside.float())[0], beside.float())  # nobody asks for y


def inputs(d: int, b: int, l: int, p: int) -> list[Tensor]:
    lam = torch.polar(torch.rand(p) * 0.3 + 0.69, torch.rand(p) * 6)
    return [torch.view_as_real(lam), torch.randn(2 * p, d), torch.randn(d, 2 * p), torch.randn(d, b, l)]


def simulated(lam: Tensor, W_in: Tensor, W_out: Tensor, x: Tensor) -> Tensor:
    """Step by step with complex matrices: W_in holds B by rows of pairs, W_out the conjugate of C by columns."""
    B = torch.complex(W_in[0::2], W_in[1::2])
    C = torch.complex(W_out[:, 0::2], -W_out[:, 1::2])
    u = x.permute(1, 2, 0)  # (b, l, d)
    y = simulate(torch.view_as_complex(lam), B, C, torch.zeros_like(x[:, 0, 0]), u, 1.0)
    return y.permute(2, 0, 1)


def gradients(y: Tensor, asked: list[Tensor], g: Tensor) -> tuple[Tensor, ...]:
    """Of (y, g); an input that y does not depend on has a gradient of zeros."""
    found = torch.autograd.grad(y, asked, g, allow_unused=True)
    return tuple(torch.zeros_like(t) if f is None else f for f, t in zip(found, asked, strict=True))


@pytest.mark.parametrize(("d", "b", "l", "p"), [(5, 2, 21, 3), (4, 1, 8, 4), (3, 2, 1, 5)])
def test_values_and_gradients(d: int, b: int, l: int, p: int) -> None:
    given = inputs(d, b, l, p)
    wide = [t.double().requires_grad_() for t in given]
    want = simulated(*wide)
    g = torch.randn_like(want)
    truth = gradients(want, wide, g)
    own = [t.clone().requires_grad_() for t in given]
    got = projected.projected_scan(*own)
    assert_close(got, want)
    for a, c in zip(gradients(got, own, g.float()), truth, strict=True):
        assert_close(a, c, gradient=True)
    x = given[3].clone().requires_grad_()  # as in an attack
    assert_close(torch.autograd.grad(projected.projected_scan(*given[:3], x), x, g.float())[0], truth[3], gradient=True)


def test_any_strides() -> None:
    lam, W_in, W_out, x = inputs(3, 2, 11, 2)
    want = simulated(lam.double(), W_in.double(), W_out.double(), x.double())
    for order in ((1, 2, 0), (2, 0, 1), (0, 2, 1)):
        moved = x.permute(order).contiguous()
        back = moved.permute([order.index(i) for i in range(3)])
        assert_close(projected.projected_scan(lam, W_in.T.contiguous().T, W_out, back), want)


@pytest.mark.parametrize(("l", "unit"), [(16, 1), (24, 8), (21, 1), (8, 8)])
def test_rows_at_multiples_of_eight_numbers(l: int, unit: int) -> None:
    lam, W_in, W_out, x = inputs(2, 1, l, 1)
    assert projected_triton._unit(x, x) == unit
    want = simulated(lam.double(), W_in.double(), W_out.double(), x.double())
    assert_close(projected.projected_scan(lam, W_in, W_out, x), want)


def test_a_memory_longer_than_a_tile() -> None:
    """|lam| near 1: what enters a tile matters as much as what is in it; also with |lam| = 0."""
    lam = torch.view_as_real(torch.tensor([0.9999 + 0j, 0j]))
    given = [lam, torch.ones(4, 2), torch.ones(2, 4), torch.ones(2, 1, 33)]
    assert_close(projected.projected_scan(*given), simulated(*(t.double() for t in given)))


def test_second_derivatives() -> None:
    found = []
    given = inputs(3, 1, 5, 2)
    for function in (projected.projected_scan, simulated):
        own = [t.double().requires_grad_() if function is simulated else t.clone().requires_grad_() for t in given]
        first = torch.autograd.grad(function(*own).square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(sum((f.square().sum() for f in first), first[0].new_zeros(())), own))
    for a, c in zip(*found, strict=True):
        assert_close(a, c, gradient=True)


@pytest.mark.parametrize("fails", ["forward", "input_gradient", "gradients"])
def test_a_kernel_that_does_not_fit_is_replaced(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    triton_interpreter.refused(monkeypatch, (projected_triton, fails))
    for _ in range(2):
        test_values_and_gradients(2, 1, 3, 1)
    assert sum("torch takes over" in r.getMessage() for r in caplog.records) == 1
