"""Directions of unit norm along which a linear function with the gradient g (b, n) grows fastest."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 1e-12  # of a gradient's L2 norm, below which its squares may have underflown


def unit(flat: Tensor) -> Tensor:
    """Rows (b, n) at unit L2 norm; tiny and huge ones are scaled first, so that their squares stay in range."""
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    odd = ~((length > _SMALL) & torch.isfinite(length))
    if bool(odd.any()):
        peak = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
        flat = torch.where(odd, flat / peak, flat)
        length = torch.where(odd, torch.linalg.vector_norm(flat, dim=1, keepdim=True), length)
    return flat / safe(length)


def sparse(flat: Tensor, free: Tensor, share: float | Tensor) -> Tensor:
    """The sign of the `share` (number or (b,)) largest of `free` (b,) entries, spread evenly; what is not free is 0."""
    n = flat.shape[1]  # what the mask excludes is 0 and comes first
    kept = (free - ((1 - torch.as_tensor(share, device=flat.device)) * free).long()).clamp_min(1)
    skip = (n - kept).clamp(0, n - 1).expand(flat.shape[0])
    least = flat.abs().sort(1).values.gather(1, skip[:, None])
    signs = torch.where(flat.abs() >= least, flat.sign(), 0.0)
    return signs / safe(signs.abs().sum(1, keepdim=True))


def safe(length: Tensor) -> Tensor:
    return torch.where(length > 0, length, 1.0)
