"""`ascent.step` as one kernel, one program per sample: a dozen short ones take longer to launch than to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import attempt, on_device

if TYPE_CHECKING:
    from resolvent.attacks.threat.region import Region

BLOCK = 1024


def step(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor | None:
    """None if it cannot run here, which is logged once."""
    return attempt("a step of an attack", lambda: _step(x, grad, answers, region, size), lambda: None)


def _step(x: Tensor, grad: Tensor, answers: tuple[Tensor, Tensor], region: Region, size: Tensor) -> Tensor:
    b, n = len(x), x[0].numel()
    losses, outputs = (t.detach().contiguous() for t in answers)
    assert region.low is not None
    assert region.high is not None
    low, high = (t.expand(x.shape).contiguous() for t in (region.low, region.high))
    length = size.to(x.dtype).expand(b, *[1] * (x.dim() - 1)).contiguous()
    k, moved = outputs[0].numel(), torch.empty_like(x, memory_format=torch.contiguous_format)
    with on_device(x):
        step_kernel[(b,)](
            x.contiguous(), grad.contiguous(), losses, outputs, low, high, length, moved, n, k, BLOCK=BLOCK
        )
    return moved


@triton.jit
def step_kernel(X, G, LOSS, OUT, LOW, HIGH, SIZE, MOVED, n, k, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    loss = tl.load(LOSS + row)
    doubt = tl.zeros((BLOCK,), dtype=tl.float32)  # NaN if anything is not finite
    for first in range(0, k, BLOCK):
        out = tl.load(OUT + row * k + first + at, mask=first + at < k, other=0.0)
        doubt += out - out
    for first in range(0, n, BLOCK):
        g = tl.load(G + row * n + first + at, mask=first + at < n, other=0.0)
        doubt += g - g
    good = tl.sum(doubt, 0) + (loss - loss) == 0
    size = tl.where(good, tl.load(SIZE + row), 0.0)
    for first in range(0, n, BLOCK):
        inside, place = first + at < n, row * n + first + at
        g = tl.load(G + place, mask=inside, other=0.0)
        x = tl.load(X + place, mask=inside, other=0.0)
        x += tl.where(g > 0, size, tl.where(g < 0, -size, 0.0))
        low, high = (tl.load(LOW + place, mask=inside, other=0.0), tl.load(HIGH + place, mask=inside, other=0.0))
        tl.store(MOVED + place, tl.minimum(tl.maximum(x, low), high), mask=inside)
