"""A minimal kernel. Imported only to test whether Triton works on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def increment_kernel(x: tl.tensor) -> None:
    tl.store(x, tl.load(x) + 1.0)


def increment(index: int) -> float:
    """0 + 1, computed on that GPU."""
    x = torch.zeros(1, device=torch.device("cuda", index))
    with torch.cuda.device(index):
        increment_kernel[(1,)](x)
    return float(x)
