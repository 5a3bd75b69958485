"""Pooling over time without loss: the final state of a norm-preserving recurrence.

Each channel has m states of its own, z_k = A z_{k-1} + b u_k with A A^T + b b^T = I: |z_k|^2 <= |z_{k-1}|^2 + u_k^2, so
that |z_l| <= |u| for sequences of every length: 1-Lipschitz from the L2 norm of a sequence to a vector. Pooling
the last step keeps one step of a sequence, the mean one direction (with constant 1 / sqrt(l)); this keeps m.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.checks import check_even, check_positive, padding_mask
from resolvent.layers.freezing import Freezable
from resolvent.layers.states import reverse
from resolvent.ops.dense_scan import dense_scan, krylov
from resolvent.runtime.transforms import is_traced, wide
from resolvent.ssm.contraction import cayley_rows, rounding_margin, spectral_norm
from resolvent.ssm.rounding import Allowance, Rounding, count


class StatePool(Freezable):
    """(b, l, d) -> (b, d m): the state after each sequence's last step, m (even) states for each channel.

    A starts as rotations by (i + 1/2) 2 pi / m: a ring buffer of exactly the last m steps, which is an isometry. [A b]
    comes from the Cayley transform of free U, V (Wang and Manchester 2023) and keeps its identity in training.

    Examples:
        >>> rv.blocks.StatePool(4, 8)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 32])
    """

    def __init__(self, d_model: int, m: int) -> None:
        super().__init__()
        check_positive("StatePool", d_model=d_model)
        check_even("StatePool", m)
        self.d_model, self.m = d_model, m
        slope = torch.tan((torch.arange(m // 2, dtype=torch.float64) + 0.5) * math.pi / m)  # tangent of the half angle
        U = torch.zeros(m, m, dtype=torch.float64)
        U[torch.arange(0, m, 2), torch.arange(1, m, 2)] = slope
        V = torch.sqrt((1 + slope**2) / m).repeat_interleave(2)
        own = torch.get_default_dtype()
        self.U = nn.Parameter(U.to(own).expand(d_model, m, m).clone())  # (d, m, m)
        self.V = nn.Parameter(V.to(own).expand(d_model, 1, m).clone())  # (d, 1, m)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A (d, m, m) and b (d, m, 1) as used."""
        found: tuple[Tensor, Tensor] = self.cached("matrices", self._matrices)
        return found

    def powers(self, length: int) -> Tensor:
        """[b, A b, A^2 b, ...] (d, m, length)."""
        if is_traced(self.U):  # the length may be symbolic
            return krylov(*self.matrices(), length)
        found: Tensor = self.cached(f"powers {length}", lambda: krylov(*self.matrices(), length))
        return found

    def _matrices(self) -> tuple[Tensor, Tensor]:
        A, b = cayley_rows(wide(self.U), wide(self.V))
        keep = rounding_margin(self.m + 1)
        return (keep * A).to(self.U.dtype), (keep * b).to(self.U.dtype)

    def gain(self) -> float:
        """The Lipschitz constant from sequences to the pooled vector: 1 if every [A b] is a contraction."""
        rows = torch.cat(self.matrices(), -1)  # (d, m, m + 1)
        largest = max(spectral_norm(row) for row in rows)
        return 1.0 if largest <= 1 else math.inf

    def rounding(self) -> Allowance:
        """The measured error of the powers in use, and the rounding of a sum over time."""

        def found(steps: int) -> Rounding:
            used = self.powers(steps).detach()
            A, b = self.matrices()
            exact = krylov(A.detach().double(), b.detach().double(), steps)
            wrong = float((used.double() - exact).flatten(1).norm(dim=1).max()) / torch.finfo(used.dtype).eps
            return Rounding(4 * wrong + count(steps) * float(exact.flatten(1).norm(dim=1).max()))

        return found

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """z_l = sum_j A^j b u_{l-1-j}, one product with the powers."""
        mask = padding_mask(x, lengths)
        back = reverse(x if mask is None else x.masked_fill(mask, 0), lengths)  # (b, l, d)
        return torch.einsum("bld,dml->bdm", back, self.powers(x.shape[1])).flatten(1)

    def initial(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.d_model, self.m)

    def running(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x (b, l, d) continues the sequence: the pooled value at each of its steps (b, l, d m), and the state."""
        A, b = self.matrices()
        z = [dense_scan(A[c], F.linear(x[..., c, None], b[c]), state[:, c]) for c in range(self.d_model)]
        each = torch.stack(z, 2)  # (b, l, d, m)
        return each.flatten(2), each[:, -1]
