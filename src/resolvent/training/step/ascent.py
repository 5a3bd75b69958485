"""One step of an Linf attack: up the sign of the gradient and back into the region, without a look at any value."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks.threat.region import Region
from resolvent.ops.ascent.reference import sign_step
from resolvent.runtime.fallback import triton_module


def step_signs(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    """x (b, ...) moved by `size` (b, 1, ...), or one that broadcasts to x; a sample whose gradient, loss or output is
    not finite stays put.

    answers  losses (b,) and outputs (b, ...)
    """
    alike = size[0].numel() == 1  # in all entries of a sample
    fits = x.is_cuda and alike and region.free is None and _plain(x, grad, *answers, region.low, region.high)
    quick = triton_module("ops.ascent.step_triton") if fits else None
    found = None if quick is None else quick.step(x, grad, answers, region, size)
    return plain_step(x, grad, answers, region, size) if found is None else found


def plain_step(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    seen = torch.cat([v.detach().reshape(len(x), -1) for v in (*answers, grad)], 1)
    good = ((seen - seen).sum(1) == 0).view(-1, *[1] * (x.dim() - 1))  # of what is not finite that is NaN
    return region.project(sign_step(x, grad, size, good))


def _plain(x: Tensor, *others: Tensor | None) -> bool:
    """float32, and nothing to compute."""
    return x.numel() > 0 and all(t is not None and t.dtype == torch.float32 for t in (x, *others))
