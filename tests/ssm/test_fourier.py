"""Filters by FFT against the sum itself and autograd through it; a model made of them against its modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ssm import fourier as module
from resolvent.ssm import toeplitz
from resolvent.ssm.convolution import direct_conv
from resolvent.ssm.fourier import correlated, fourier

SHAPES = [(3, 2, 37), (1, 1, 1), (2, 5, 64), (4, 1, 130), (2, 0, 9)]


def drawn(d: int, b: int, l: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, g = (torch.randn(d, b, l, dtype=torch.float64) for _ in range(2))
    return torch.randn(d, l, dtype=torch.float64), x, g


@pytest.mark.parametrize("chunk", [1, 4096, 1 << 30])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many channels go at a time."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    k, x, g = drawn(*shape)
    x, k = x.requires_grad_(), k.requires_grad_()
    want = direct_conv(x, k[:, None])
    gx, gk = torch.autograd.grad(want, (x, k), g)
    made = fourier(k).detached()
    x, k = x.detach(), k.detach()
    assert_close(made.forward(x), want)
    assert_close(made.adjoint(g), gx)
    onto = x.clone()
    assert made.adjoint(g, onto) is onto
    assert_close(onto, gx + x)
    assert_close(made.taps(x, g)[0], gk)
    assert_close(correlated(x, g), gk)


def test_gradients_to_the_second_order() -> None:
    k, x, _ = drawn(2, 2, 9)
    torch.autograd.gradcheck(lambda x, k: fourier(k)(x), (x.requires_grad_(), k.requires_grad_()))
    torch.autograd.gradgradcheck(lambda x, k: fourier(k)(x) * x, (x, k))


def test_only_x_is_differentiated_when_detached() -> None:
    k, x, g = drawn(2, 3, 21)
    k, x = k.requires_grad_(), x.requires_grad_()
    y = fourier(k).detached()(x)
    gx, gk = torch.autograd.grad(y, (x, k), g, allow_unused=True)
    assert gk is None
    assert_close(gx, torch.autograd.grad(direct_conv(x, k[:, None]), x, g)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    k, x, g = drawn(3, 4, 300)
    x, g = x.to(dtype), g.to(dtype)
    made = fourier(k.float())
    want = direct_conv(x.double(), k[:, None])
    y, gx = made.forward(x), made.adjoint(g, onto=x.clone())
    assert y.dtype == gx.dtype == dtype
    assert made.taps(x, g)[0].dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert float((y.double() - want).abs().max()) <= (eps + 1e-6) * float(want.abs().max())
    sums = toeplitz.toeplitz(k, torch.float64).adjoint(g.double()) + x.double()
    assert float((gx.double() - sums).abs().max()) <= (eps + 1e-6) * float(sums.abs().max())
