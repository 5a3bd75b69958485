"""One step up the sign of a gradient, in torch operations: the reference of the kernels in this folder."""

from __future__ import annotations

import torch
from torch import Tensor


def sign_step(x: Tensor, grad: Tensor, size: Tensor, good: Tensor) -> Tensor:
    """x + size sign(grad) where `good` (b, 1, ...), else x."""
    return x + size * torch.where(good, grad, 0.0).sign()
