"""Padded sequences: which entries of x (b, l, ...) are valid, given lengths (b,)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def check_lengths(where: str, lengths: Any, x: Tensor) -> Tensor | None:
    """(b,) integers from 1 to l, on x's device; None is passed through."""
    if lengths is None:
        return None
    whole = isinstance(lengths, Tensor) and not lengths.is_floating_point() and lengths.dtype != torch.bool
    if not whole or lengths.shape != x.shape[:1] or x.dim() < 2:
        got = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"{where}: lengths must be whole numbers ({x.shape[0]},), one for each sample; got {got}.")
    if lengths.numel() and not 1 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[1]:
        low, high = int(lengths.min()), int(lengths.max())
        raise ValueError(f"{where}: lengths must lie in 1 .. {x.shape[1]}, got {low} .. {high}.")
    found: Tensor = lengths.to(x.device)
    return found


def own_steps(x: Tensor, lengths: Tensor) -> Tensor:
    """True at valid steps: (b, l, 1, ...) for x (b, l, ...)."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]  # (b, l)
    return inside.reshape(*inside.shape, *[1] * (x.dim() - 2))


def own_entries(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The number of entries of each sample that may change: (b,) float64."""
    if lengths is None:
        return torch.full((x.shape[0],), float(math.prod(x.shape[1:])), dtype=torch.float64, device=x.device)
    return lengths.to(x.device).double() * math.prod(x.shape[2:])
