"""A kernel that computes ex2 and nothing else, to find the rate of the unit that does so."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def _exp2_kernel(out: tl.tensor, rounds: tl.tensor, BLOCK: tl.constexpr) -> None:
    x = tl.arange(0, BLOCK).to(tl.float32) / BLOCK
    for _ in range(rounds):
        x = tl.exp2(-x)
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), x)


def exponentials(seconds: Callable[[Callable[[], object]], float]) -> float:
    """ex2 a second."""
    programs, block, rounds = 132 * 16, 2048, 1000
    out = torch.empty(programs * block, device="cuda")
    return programs * block * rounds / seconds(lambda: _exp2_kernel[(programs,)](out, rounds, BLOCK=block, num_warps=4))
