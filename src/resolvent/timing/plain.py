"""A layer in plain torch operations: a straightforward implementation of its paper, with the layer's parameters.

    one input, one output a channel (S4, S4D, DSS, EMA)    the kernel of full length, then an FFT convolution
    many inputs, many outputs, diagonal (S5, LRU)          B u, a scan by doubling over time, 2 Re(C h)
    selective (S6, RG-LRU)                                 every step's matrices at once, then a loop over time
    anything else (L2RU)                                   a loop over time

It shares neither kernels nor tables with the fast paths; one of each conjugate pair is kept, as in the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.layers import Layer
from resolvent.ssm import Diagonal, System, kernel


class Half(NamedTuple):
    """A diagonal system with one of each conjugate pair: y = scale Re(C h) + D u."""

    lam: Tensor  # (..., n)
    B: Tensor  # (..., n, m)
    C: Tensor  # (..., p, n)
    D: Tensor  # (..., p, m)
    scale: int


def plain(layer: Layer) -> Callable[[Tensor], Tensor]:
    """`plain(layer)(x)` equals `layer(x)[0]` from the zero state, for a unidirectional layer."""
    linearise = getattr(layer, "linearise", None)
    if linearise is not None:
        return lambda x: run_loop(linearise(x), x)
    system = getattr(layer, "system", None)
    if system is None:
        raise ValueError(f"plain: {type(layer).__name__} has neither system() nor linearise(x).")
    return lambda x: constant(system(), x)


def constant(system: System, x: Tensor) -> Tensor:
    """The method for the form of a time-invariant system; x (b, l, d)."""
    if system.bank:
        return convolve(system, x)
    if isinstance(system.A, Diagonal) and not system.delay:
        return scan_by_doubling(take_half(system), x)
    return system.simulate(x)[0].real.to(x.dtype)


def take_half(system: System) -> Half:
    """The half that `conjugate_closed` doubled; a real system unchanged."""
    assert isinstance(system.A, Diagonal)
    lam, D = system.A.lam, system.D.real if system.D.is_complex() else system.D
    if not lam.is_complex():
        return Half(lam, system.B, system.C, D, 1)
    n = lam.shape[-1] // 2
    return Half(lam[..., :n], system.B[..., :n, :], system.C[..., :n], D, 2)


def convolve(system: System, x: Tensor) -> Tensor:
    """irfft(rfft(k) rfft(u)) + D u with twice the length, so that nothing wraps around."""
    l, u = x.shape[1], x.mT  # (b, d, l)
    if isinstance(system.A, Diagonal):
        half = take_half(system)
        table = torch.exp(half.lam.log()[..., None] * torch.arange(l, device=x.device))  # (d, n, l)
        k = half.scale * ((half.C[..., 0, :] * half.B[..., 0])[..., None] * table).sum(-2)  # (d, l)
    else:
        k = kernel(system, l)[..., 0, 0, :]
    k = k.real.to(x.dtype) if k.is_complex() else k.to(x.dtype)
    y = torch.fft.irfft(torch.fft.rfft(u, 2 * l) * torch.fft.rfft(k, 2 * l), 2 * l)[..., :l]
    D = system.D[..., 0].real if system.D.is_complex() else system.D[..., 0]  # (d, 1)
    return (y + D * u).mT


def scan_by_doubling(half: Half, x: Tensor) -> Tensor:
    """h_t = lam h_{t-1} + B u_t by doubling: after k rounds every h_t includes its last 2^k steps."""
    h = x.to(half.B.dtype) @ half.B.mT  # (b, l, n)
    a, reach = half.lam, 1
    while reach < x.shape[1]:
        h = torch.cat([h[:, :reach], h[:, reach:] + a * h[:, :-reach]], 1)
        a, reach = a * a, 2 * reach
    return half.scale * (h @ half.C.mT).real + x @ half.D.mT


def run_loop(system: System, x: Tensor) -> Tensor:
    """A time-varying bank (b, d) of diagonal systems, step by step."""
    assert isinstance(system.A, Diagonal)
    u = x.mT[..., None]  # (b, d, l, 1)
    driven = system.B[..., 0] * u  # (b, d, l, n)
    h, ys = torch.zeros_like(driven[:, :, 0]), []
    for lam, b, c in zip(system.A.lam.unbind(2), driven.unbind(2), system.C[..., 0, :].unbind(2), strict=True):
        h = lam * h + b
        ys.append((c * h).sum(-1))
    return (torch.stack(ys, 2) + system.D[..., 0, 0] * x.mT).mT
