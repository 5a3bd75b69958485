"""The straightforward version of the study's post-norm models, with the parameters of one of ours.

Kernels of full length in every pass, convolution by float32 FFT, (b, l, d) throughout, torch's own operations and
autograd: what a careful reader of the papers writes first. It shares no code with the quick paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import eager_blocks
from resolvent.blocks.ads import AdS
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import Mixer
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.residual import Residual
from resolvent.layers import DSS, S4, S4D, S5

Scan = Callable[..., Any]


class Eager(nn.Module):
    """`Eager(model)(x)` equals `model(x)` for post-norm models with LayerNorm and mean pooling.

    `scan` takes the place of the eager scan of S5 (a, b -> h) or Mamba (u, dt, A, B, C, D, z -> y).
    """

    def __init__(self, model: Any, scan: Scan | None = None) -> None:
        super().__init__()
        self.model, self.scan = model, scan

    def forward(self, x: Tensor) -> Tensor:
        tower, head = self.model.tower, self.model.head
        h = tower.input_norm(tower.entry(x))
        for block in tower.body.blocks:
            h = eager_blocks.mega(block, h) if isinstance(block, GatedAttention) else _block(block, h, self.scan)
        return head.out(h.mean(1))


def _block(block: Residual, x: Tensor, scan: Scan | None) -> Tensor:
    layer: Any = block.layer
    norm: Any = block.norm
    if isinstance(layer, S5):
        y = eager_blocks.s5(layer, x, scan)
    elif isinstance(layer, Mamba):
        y = eager_blocks.mamba(layer, x, scan)
    elif isinstance(layer, Pointwise):
        y = layer.inner(x)
    else:
        y = _mixed(block, x)
    return F.layer_norm(x + y, (x.shape[2],), norm.weight, norm.bias, norm.eps)


def _mixed(block: Residual, x: Tensor) -> Tensor:
    layer: Any = block.layer
    mixer, u = block.mixer, x.mT  # (b, d, l)
    y = (eager_blocks.convolved(u, _kernel(layer, x.shape[1])) + layer.D[:, None] * u).mT
    if isinstance(block.ads, AdS):
        y = block.ads.sigma(block.ads.scale(y)) * y
    assert isinstance(mixer, Mixer)
    assert mixer.linear is not None
    return mixer.final(mixer.linear(mixer.act(y)))


def _kernel(layer: nn.Module, l: int) -> Tensor:
    """(d, l) in float32, or float64 for a float64 layer."""
    if isinstance(layer, S4D):
        assert layer.frequency is not None
        dt = layer.log_dt.exp()[:, None]
        lam = torch.complex(-layer.log_decay.exp(), layer.frequency)  # (d, n)
        B, C = torch.view_as_complex(layer.B), torch.view_as_complex(layer.C)
        return 2 * _vandermonde(dt * lam, C * B * torch.expm1(dt * lam) / lam, l)
    if isinstance(layer, DSS):
        dt, lam = layer.log_dt.exp(), torch.complex(layer.decay, layer.frequency)
        z = torch.complex(dt[:, :1] * lam.real, dt[:, -1:] * lam.imag)
        if layer.kernel == "exp":
            lam = torch.complex(-layer.decay.exp(), layer.frequency)
            z = torch.complex(dt[:, :1] * lam.real, dt[:, -1:] * lam.imag)
            return _vandermonde(z, torch.view_as_complex(layer.W) * torch.expm1(z) / lam, l)
        total = lam * torch.exp(z[..., None] * torch.arange(l, device=z.device)).sum(-1)
        return _vandermonde(z, torch.view_as_complex(layer.W) * total.conj() / (total.abs() ** 2 + 1e-7), l)
    assert isinstance(layer, S4)
    return _cauchy(layer, l)


def _vandermonde(z: Tensor, weight: Tensor, l: int) -> Tensor:
    powers = torch.exp(z[..., None] * torch.arange(l, device=z.device))  # (d, n, l)
    return (weight[..., None] * powers).sum(1).real


def _cauchy(layer: S4, l: int) -> Tensor:
    """The generating function of the truncated kernel at the roots of unity (Gu et al. 2022), one channel at a time."""
    lam = torch.complex(-layer.log_decay.exp(), layer.frequency)  # (1, n)
    lam = torch.cat([lam, lam.conj()], -1)
    P, B, C = (torch.view_as_complex(p) for p in (layer.P[..., 0, :], layer.B, layer.C))
    P, B, C = (torch.cat([t, t.conj()], -1) for t in (P, B, C))  # (1, 2n), (1, 2n), (d, 2n)
    dt = layer.log_dt.exp()[:, None]
    A = torch.diag_embed(lam) - P[..., None] * P.conj()[..., None, :]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    step = dt[..., None] / 2 * A
    A_bar = torch.linalg.solve(eye - step, eye + step)  # (d, 2n, 2n)
    last = torch.linalg.matrix_power(A_bar, l)
    C = C - (C[:, None] @ last)[:, 0]
    om = torch.exp(-2j * torch.pi * torch.arange(l, device=dt.device) / l).to(A.dtype) * (1 - 1e-6)
    g = 2 / dt * (1 - om) / (1 + om)  # (d, l)
    R = 1 / (g[..., None] - lam[:, None])  # (d, l, 2n)
    k00, k01 = (R * (C * B)[:, None]).sum(-1), (R * (C * P)[:, None]).sum(-1)
    k10, k11 = (R * (P.conj() * B)[:, None]).sum(-1), (R * (P.conj() * P)[:, None]).sum(-1)
    return torch.fft.ifft(2 / (1 + om) * (k00 - k01 * k10 / (1 + k11))).real
