"""LayerNorm of columns, z (d, m) over axis 0, and its gradient, as values; a compiled version where numba is installed.

unit = (z - mean) / deviation,    out = gamma unit + beta,    1 / deviation = (var + eps)^(-1/2)
∂z   = (γ∂ - mean(γ∂) - unit mean(γ∂ unit)) / deviation
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from resolvent.runtime.dispatch import choose, numba_or


def normalise(z: Tensor, r: Tensor | None, affine: Tensor) -> tuple[Tensor, Tensor]:
    """out (d, m) and 1 / deviation (m,) of z + bias + r; z is overwritten with unit.

    affine (4, d) holds bias, gamma, beta and, repeated, eps.
    """
    kernel = choose("column norm", _FORWARD, z.device, z.dtype)
    found: tuple[Tensor, Tensor] = kernel(z, r, affine)
    return found


def slope(g: Tensor, unit: Tensor, rstd: Tensor, gamma: Tensor) -> Tensor:
    """∂z (d, m) from the gradient g of out."""
    kernel = choose("column norm backward", _BACKWARD, g.device, g.dtype)
    found: Tensor = kernel(g, unit, rstd, gamma)
    return found


def torch_normalised(z: Tensor, r: Tensor | None, affine: Tensor) -> tuple[Tensor, Tensor]:
    bias, gamma, beta, eps = affine[:, :, None].unbind(0)
    z.add_(bias)
    if r is not None:
        z.add_(r)
    z.sub_(z.mean(0))
    rstd = torch.rsqrt(z.square().mean(0) + eps[0])
    z.mul_(rstd)
    return z * gamma + beta, rstd


def torch_slope(g: Tensor, unit: Tensor, rstd: Tensor, gamma: Tensor) -> Tensor:
    gu = g * gamma[:, None]
    mean, along = gu.mean(0), (gu * unit).mean(0)
    return gu.sub_(mean).sub_(unit * along).mul_(rstd)


def _load_forward() -> Callable[..., Any]:
    from resolvent.ops.pointwise.column_norm_numba import normalise

    return normalise


def _load_backward() -> Callable[..., Any]:
    from resolvent.ops.pointwise.column_norm_numba import slope

    return slope


def _probe_forward(kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    z, r, affine = _numbers((3, 131), dtype), _numbers((3, 131), dtype).flip(1), _numbers((4, 3), dtype).abs()
    got, want = z.clone(), z.clone()
    pairs = zip((*kernel(got, r, affine), got), (*torch_normalised(want, r, affine), want), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def _probe_backward(kernel: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> bool:
    g, unit, rstd = _numbers((3, 131), dtype), _numbers((3, 131), dtype).flip(1), _numbers((131,), dtype)
    gamma = _numbers((3,), dtype)
    return torch.allclose(kernel(g, unit, rstd, gamma), torch_slope(g, unit, rstd, gamma), rtol=1e-4, atol=1e-5)


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count) * 1.7 + 0.3).to(dtype).reshape(shape)


_FORWARD = numba_or(torch_normalised, _load_forward, _probe_forward)
_BACKWARD = numba_or(torch_slope, _load_backward, _probe_backward)
