"""The impulse response of a diagonal bank and its hand-written gradient, against the sum over powers itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.blocked.tables import DiagonalBank
from resolvent.ssm.impulse import impulse


def powers_summed(lam: Tensor, weight: Tensor, D: Tensor, length: int) -> Tensor:
    K = torch.stack([(weight * lam**step).real.sum(-1) for step in range(length)], -1)
    return torch.cat([K[:, :1] + D[:, None], K[:, 1:]], 1)


def a_bank() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    lam = torch.polar(torch.rand(3, 5, dtype=torch.float64), 6 * torch.rand(3, 5, dtype=torch.float64))
    lam[0, 0] = 0.0  # a pure delay: no logarithm and no quotient of powers would survive it
    weight, D = torch.randn(3, 5, dtype=torch.complex128), torch.randn(3, dtype=torch.float64)
    return lam.requires_grad_(), weight.requires_grad_(), D.requires_grad_()


@pytest.mark.parametrize("length", [2, 3, 16, 37])
def test_values_and_gradients(length: int) -> None:
    inputs = a_bank()
    got, want = impulse(DiagonalBank(*inputs), length), powers_summed(*inputs, length)
    assert_close(got, want)
    direction = torch.randn_like(want)
    for g, w in zip(*(torch.autograd.grad(K, inputs, direction) for K in (got, want)), strict=True):
        assert_close(torch.view_as_real(g) if g.is_complex() else g, torch.view_as_real(w) if w.is_complex() else w)


def test_one_step_depends_on_the_weights_alone() -> None:
    lam, weight, D = a_bank()
    K = impulse(DiagonalBank(lam, weight, D), 1)
    assert_close(K, powers_summed(lam, weight, D, 1))
    g_lam, g_weight = torch.autograd.grad(K.sum(), (lam, weight))
    assert (g_lam == 0).all()
    assert_close(g_weight.real, torch.ones(3, 5, dtype=torch.float64))


def test_second_derivatives() -> None:
    lam, weight, _ = a_bank()
    inputs = lam.detach()[:1, 1:3].requires_grad_(), weight.detach()[:1, 1:3].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda a, w: impulse(DiagonalBank(a, w), 6), inputs)
