"""One step of an Linf attack: up the sign of the gradient and back into the region, without a look at any value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.region import Region


def stepped(x: Tensor, grad: Tensor, told: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    """x (b, ...) moved by `size` (b, 1, ...); a sample whose gradient, loss or output is not finite stays put.

    told  losses (b,) and outputs (b, ...)
    """
    quick = _triton() if x.is_cuda and _plain(x, grad, *told, region.low, region.high) else None
    found = None if quick is None or region.free is not None else quick.stepped(x, grad, told, region, size)
    return plain_step(x, grad, told, region, size) if found is None else found


def plain_step(x: Tensor, grad: Tensor, told: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    seen = torch.cat([v.detach().reshape(len(x), -1) for v in (*told, grad)], 1)
    good = ((seen - seen).sum(1) == 0).view(-1, *[1] * (x.dim() - 1))  # of what is not finite that is NaN
    return region.project(x + size * torch.where(good, grad, 0.0).sign())


def _plain(x: Tensor, *others: Tensor | None) -> bool:
    """float32, and nothing to compute."""
    return x.numel() > 0 and all(t is not None and t.dtype == torch.float32 for t in (x, *others))


def _triton() -> Any:
    """The GPU's kernel, or None where Triton is not installed."""
    try:
        from resolvent.training import ascent_triton
    except ImportError:
        return None
    return ascent_triton
