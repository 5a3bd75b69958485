"""The impulse response of a bank of complex modes: on a GPU one kernel for forward and one for backward.

The reference is `ssm.impulse` in float64. Like those of `ssm.response` the kernels round to float32, sufficient for a
convolution in half precision; they serve banks whose layers have no kernel that starts from parameters.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked import DenseBank, DiagonalBank
from resolvent.runtime.dispatch import Candidate, choose, nothing, triton_or
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast
from resolvent.ssm.impulse import impulse

FAINT = 1e-30  # below this modulus already the first power is negligible
CLOSE = 1e-4


def serves(bank: DiagonalBank | DenseBank) -> bool:
    """Whether the kernels support this bank."""
    if not (isinstance(bank, DiagonalBank) and bank.lam.is_complex() and bank.lam.is_cuda and is_untransformed()):
        return False
    return choose("bank_response", _candidates(), bank.lam.device, torch.float32) is not nothing


def make_response(bank: DiagonalBank, length: int) -> Tensor:
    """K (d, length) in float32 with D = 0; requires `serves(bank)`. A mode grows by at most e^80 over the length."""
    z = torch.complex(bank.lam.abs().clamp(min=FAINT).log(), bank.lam.angle())
    w = bank.weight if bank.gain is None else bank.weight * bank.gain
    w = torch.where(z.real > 0, w * (z * (length - 1)).exp(), w)
    K: Tensor = _Response.apply(*(torch.view_as_real(t.contiguous()) for t in (z, w)), length)
    return K if bank.D is None else torch.cat([K[:, :1] + bank.D[:, None].to(K.dtype), K[:, 1:]], 1)


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(z, w)
        K: Tensor = _load().response(z, w, length)
        return K

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (z, w), g = ctx.saved_tensors, gradients[0]
        if by_graph_only(g):
            run = lambda z, w: (_sum_modes(z, w, g.shape[1]),)  # noqa: E731
            return *gradients_by_graph(run, (z, w), (g,), ctx.needs_input_grad[:2]), None
        return *_load().response_gradients(z, w, g.contiguous()), None


def _sum_modes(z: Tensor, w: Tensor, length: int) -> Tensor:
    """The kernels' computation in torch operations."""
    z, w = torch.view_as_complex(z), torch.view_as_complex(w)
    k = torch.arange(length, device=z.device, dtype=z.real.dtype)
    steps = k - torch.where(z.real > 0, length - 1, 0)[..., None]  # (d, n, l)
    return (w[..., None] * (steps * z[..., None]).exp()).sum(-2).real.to(torch.float32)


def _load() -> Any:
    from resolvent.ops.modes import bank_response_triton

    return bank_response_triton


def agrees(kernels: Any, device: torch.device, length: int) -> bool:
    """Whether values and gradients agree with float64, for decaying and for growing modes."""
    ramp = torch.linspace(-1, 1, 15, dtype=torch.float64, device=device).view(3, 5)
    z = torch.stack([20 / length * ramp, 2 * ramp.flip(0)], -1)
    w = torch.stack([ramp.cos(), ramp.sin()], -1)
    K = kernels.response(z, w, length)
    slopes = kernels.response_gradients(z, w, K)
    with torch.enable_grad():
        own = [t.clone().requires_grad_() for t in (z, w)]
        lam, weight = torch.view_as_complex(own[0]), torch.view_as_complex(own[1])
        shift = torch.where(lam.real > 0, (lam * (1 - length)).exp(), 1)
        want = impulse(DiagonalBank(lam.exp(), weight * shift), length)
        wanted = torch.autograd.grad(want, own, K.double())
    pairs = (K, want), *zip(slopes, wanted, strict=True)
    return all(bool((got.double() - w).norm() <= CLOSE * w.norm()) for got, w in pairs)


@cache
def _candidates() -> tuple[Candidate, ...]:
    return triton_or(nothing, _load, lambda kernels, device, dtype: agrees(kernels, device, 150))
