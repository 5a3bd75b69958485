"""A diagonal recurrence with many inputs and outputs, channels first: the layer of an S5 or LRU block in lowered form.

    v = W_in x,    h = scan(lam, v),    y = W_out h + D x                       x, y (d, b, l), v, h (2p, b, l)

In torch operations, differentiable to any order; `recurrence_numba` computes the same by lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.layers.mimo import Tables
from resolvent.ops.linear_scan import constant_scan


@dataclass(frozen=True)
class Recurrence:
    """Everything that depends only on the parameters, in the dtype of the pass."""

    lam: Tensor  # (2p,), real and imaginary parts interleaved
    W_in: Tensor  # (2p, d)
    W_out: Tensor  # (d, 2p)
    D: Tensor  # (d,)

    def detached(self) -> Recurrence:
        return Recurrence(self.lam.detach(), self.W_in.detach(), self.W_out.detach(), self.D.detach())

    def __call__(self, x: Tensor) -> Tensor:
        """y (d, b, l) of x (d, b, l)."""
        v = (self.W_in @ x.flatten(1)).view(-1, *x.shape[1:])
        h = constant_scan(self.lam.view(-1, 2), v)
        return torch.addcmul((self.W_out @ h.flatten(1)).view_as(x), x, self.D[:, None, None])


def recurrence(tables: Tables, dtype: torch.dtype) -> Recurrence:
    """Made from a layer's tables; differentiable if they are."""
    lam = torch.view_as_real(tables.lam_bar.resolve_conj()).flatten()
    return Recurrence(lam.to(dtype), tables.W_in.to(dtype), tables.W_out.to(dtype), tables.D.to(dtype))
