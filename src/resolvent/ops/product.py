"""Matrix products whose sums are in float32, whatever their operands are."""

from __future__ import annotations

import torch
from torch import Tensor


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b of matrices, or of batches of them, in float32, whatever their dtype."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype == torch.float32 or not a.is_cuda:
        return product(a.float(), b.float())
    return product(a, b, out_dtype=torch.float32)
