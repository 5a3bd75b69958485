"""One step up the sign of a gradient, in torch's operations: the truth of every kernel beside it."""

from __future__ import annotations

import torch
from torch import Tensor


def sign_step(x: Tensor, grad: Tensor, size: Tensor, good: Tensor) -> Tensor:
    """x + size sign(grad) where `good` (b, 1, ...) is set, elsewhere x."""
    return x + size * torch.where(good, grad, 0.0).sign()
