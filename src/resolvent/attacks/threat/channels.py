"""Values for each channel: how they broadcast to x, and an eps per channel as one radius and a scale.

Channels are the last axis of x (b, ..., c), and axis 1 of images (b, c, h, w).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.attacks.threat.region import FAR, below


class Split(NamedTuple):
    """||delta / eps||_p <= 1 written as ||delta / scale||_p <= radius, with scale 1 in the widest channel."""

    radius: Tensor  # (b,)
    scale: Tensor | None  # (1 or b, ...) of x's rank, in (0, 1]; None: 1 everywhere
    free: Tensor | None  # bool like scale: False where eps is 0 and nothing may change; None: everywhere


def is_channelwise(eps: Any) -> bool:
    """A tuple, or a tensor that broadcasts to x; a tensor (b,) has a number per sample."""
    return isinstance(eps, tuple) or (isinstance(eps, Tensor) and eps.dim() > 1)


def spread(values: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A number, a tuple with an entry per channel, or a tensor that broadcasts to x; of x's rank."""
    if isinstance(values, tuple):
        line = torch.tensor(values, dtype=dtype, device=x.device)
        return line.view(1, -1, 1, 1) if x.dim() == 4 else line.view(*[1] * (x.dim() - 1), -1)
    held = torch.as_tensor(values, dtype=dtype, device=x.device)
    return held.view(*[1] * (x.dim() - held.dim()), *held.shape)


def channels_of(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 4 else x.shape[-1]


def split(eps: Any, x: Tensor, dtype: torch.dtype) -> Split:
    """The radius and scale of an eps per channel; equal ones give the plain ball of that radius."""
    most = min(FAR, torch.finfo(dtype).max)  # of float16: below FAR
    full = spread(eps, x, torch.float64).clamp_max(most)  # (1 or b, ...)
    widest = full.flatten(1).amax(1)  # (1 or b,)
    radius, reach = below(widest, dtype).expand(x.shape[0]), widest.view(-1, *[1] * (x.dim() - 1))
    if bool((full == reach).all()):
        return Split(radius, None, None)
    ratio = below(full / torch.where(reach > 0, reach, 1.0), dtype)
    over = ratio.double() * below(reach, dtype).double() > full
    ratio = torch.where(over, torch.nextafter(ratio, ratio.new_zeros(())), ratio)
    free = ratio >= torch.finfo(dtype).tiny
    return Split(radius, torch.where(free, ratio, 1.0), None if bool(free.all()) else free)


def norm_of(norm: str, delta: Tensor, scale: Tensor | None) -> Tensor:
    """(b,), at least in float32; with a scale (1 or b, ...) that of delta / scale."""
    flat = (delta if scale is None else delta / scale).flatten(1).to(working_dtype(delta))
    if norm == "linf":
        return flat.abs().amax(1)  # ten times faster than vector_norm on a CPU
    return torch.linalg.vector_norm(flat, 2 if norm == "l2" else 1, dim=1)


def working_dtype(x: Tensor) -> torch.dtype:
    """The type of x, at least float32."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
