"""From (rows, steps, channels), as sequences come, to (channels, rows, steps), as products want them, and back.

On the CPU a transposed copy by torch takes nearly as long as a product; by tiles that fit registers a third of that. No
graph is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resolvent.runtime.dispatch import choose, numba_or

Copy = Callable[[Tensor], Tensor]


def channels_first(x: Tensor) -> Tensor:
    """x (r, t, d) as (d, r, t), its steps side by side in memory."""
    kernel: Copy = choose("channels_first", _FIRST, x.device, x.dtype)
    return kernel(x)


def channels_last(x: Tensor) -> Tensor:
    """x (d, r, t) as a contiguous (r, t, d)."""
    kernel: Copy = choose("channels_last", _LAST, x.device, x.dtype)
    return kernel(x)


def _torch_first(x: Tensor) -> Tensor:
    """With r outermost: the copy then goes through one block (t, d) after the other, which the first cache holds."""
    return x.transpose(1, 2).contiguous().transpose(0, 1)


def _torch_last(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0).contiguous()


def _load_first() -> Copy:
    from resolvent.ops.blocked.layout_numba import channels_first

    return channels_first


def _load_last() -> Copy:
    from resolvent.ops.blocked.layout_numba import channels_last

    return channels_last


def _probe(truth: Copy) -> Callable[[Copy, torch.device, torch.dtype], bool]:
    def probe(kernel: Copy, device: torch.device, dtype: torch.dtype) -> bool:
        """A tile and some over along each of the transposed axes, whichever they are."""
        x = torch.arange(9 * 10 * 11, device=device).to(dtype).reshape(9, 10, 11)
        return bool(torch.equal(kernel(x), truth(x)))

    return probe


_FIRST = numba_or(_torch_first, _load_first, _probe(_torch_first))
_LAST = numba_or(_torch_last, _load_last, _probe(_torch_last))
