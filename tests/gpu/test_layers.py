"""Every layer on a GPU against float64 on the CPU: whole, chunked and stepwise, float32 and bfloat16, gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Attention, ScalarS6, ShortConv
from resolvent.scan import linear_scan, selective_scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYERS = [
    S4(6, 8), S4D(6, 8), S4D(6, 8, init="real"), DSS(6, 8), S5(6, 8), LRU(6, 4), L2RU(6, 4), EMA(6, 4), S6(6, 4),
    ScalarS6(6, 4, abscissa=-0.1), RGLRU(6), Attention(6, heads=2, head_dim=4, kind="local", size=20), ShortConv(6),
    L2RU(6, form="complete", trainable_gamma=True), L2RU(6, 4, form="contraction"),
]  # fmt: skip
GRADIENT = 1e-3  # float32 sums over b l steps, in an order that differs from the CPU's


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    y = layer(x)[0]
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], allow_unused=True)]


@pytest.mark.parametrize("length", [1, 3, 131, 1000])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_values_and_gradients(layer: nn.Module, length: int) -> None:
    x = torch.randn(3, length, 6, dtype=torch.float64)
    truth = gradients(copy.deepcopy(layer).double(), x.clone().requires_grad_())
    found = gradients(copy.deepcopy(layer).cuda(), x.float().cuda().requires_grad_())
    assert_close(found[0].cpu().double(), truth[0], tolerance=1e-4)
    for got, want in zip(found[1:], truth[1:], strict=True):
        if want is not None:
            assert_close(got.cpu().double(), want, tolerance=GRADIENT)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_one_long_sequence(layer: nn.Module) -> None:
    """65,537 steps, one more than whole blocks of any size: values and the gradient of the input."""
    x = torch.randn(1, 65_537, 6, dtype=torch.float64)
    found = []
    for own, at in ((copy.deepcopy(layer).double(), x.clone()), (copy.deepcopy(layer).cuda(), x.float().cuda())):
        y, _ = own(at.requires_grad_())
        found.append(
            [y, *torch.autograd.grad(y, at, torch.sin(torch.arange(y.numel(), device=y.device)).view_as(y).to(y))]
        )
    for want, got in zip(*found, strict=True):
        assert_close(
            got.cpu().double(), want, tolerance=GRADIENT
        )  # as many terms in a sum as in a parameter's gradient


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_chunks_steps_and_half_precision(layer: nn.Module) -> None:
    x = torch.randn(2, 67, 6, device="cuda")
    layer = copy.deepcopy(layer).cuda()
    with torch.no_grad():
        whole, _ = layer(x)
        first, state = layer(x[:, :50])
        second, state = layer(x[:, 50:66], state)
        last, state = layer.step(x[:, 66], state)
        half, _ = layer(x.bfloat16())
    assert_close(torch.cat([first, second, last[:, None]], 1), whole, tolerance=1e-4)
    assert_close(half.float(), whole, tolerance=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_scans(dtype: torch.dtype) -> None:
    a, b = (0.9 * torch.rand(2, 4097, 5)).to(dtype), torch.randn(2, 4097, 5, dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    found = linear_scan(a.cuda(), b.cuda()).cpu().to(wide)
    assert_close(found, linear_scan(a.to(wide), b.to(wide)), tolerance=1e-10 if dtype == torch.float64 else 1e-5)


def test_selective_scan() -> None:
    B, C = torch.randn(2, 333, 4), torch.randn(2, 333, 4)
    x = [torch.randn(2, 333, 5), torch.rand(2, 333, 5), -torch.rand(5, 4), B, C]
    y, h = selective_scan(*(t.cuda() for t in x))
    y_true, h_true = selective_scan(*(t.double() for t in x))
    assert_close(y.cpu().double(), y_true, tolerance=1e-5)
    assert_close(h.cpu().double(), h_true, tolerance=1e-5)
