"""Run a bank of d single-input systems over a long input by blocks of T steps: matrix products in place of a kernel.

With the no-delay recurrence x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k, a block that starts from the state h gives

    y_j = sum_{i<=j} K_{j-i} u_i + C A^{j+1} h,    K_0 = C B + D, K_i = C A^i B        j = 0..T-1
    h' = A^T h + sum_i A^{T-1-i} B u_i

so all blocks of all sequences share three matrices per channel (Toeplitz, M_out, M_in), and only A^T runs along time.
The cost is linear in the length, no kernel of full length exists, and the states in and out come free. States travel in
real form: s = 2n reals for n complex states (real and imaginary part in turn), s = n for real ones.

Shape letters: b batch, l length, d channels, m whole blocks, T steps of a block, s reals of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.scan import linear_scan

LONGEST_BLOCK = 64  # where the Toeplitz product (T per step) and the products with the state (2s per step) balance


@dataclass(frozen=True)
class DiagonalCarry:
    """A = diag(lam): its powers lam^1, ..., lam^T, real or complex."""

    powers: Tensor  # (d, T, n)

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        """h_k = A^T h_{k-1} + z_k for z (d, m, b, s) and h0 (d, b, s): the states after each block, (d, m, b, s)."""
        b = z.shape[2]
        a = self.powers[:, -1:].repeat(1, 1, b)  # (d, 1, b n): one long row of states scans faster than b short ones
        h = linear_scan(a, self._own(z).flatten(2), self._own(h0).flatten(1))
        return self._reals(h.unflatten(2, (b, -1)))

    def by(self, h: Tensor, steps: int | Tensor) -> Tensor:
        """A^steps h for h (d, b, s), 1 <= steps <= T: one number for all or one per sequence (b,)."""
        power = self.powers[:, steps - 1]  # (d, n) or (d, b, n)
        if isinstance(steps, int):
            power = power[:, None]
        return self._reals(power * self._own(h))

    def _own(self, h: Tensor) -> Tensor:
        return torch.view_as_complex(h.unflatten(-1, (-1, 2))) if self.powers.is_complex() else h

    def _reals(self, h: Tensor) -> Tensor:
        return torch.view_as_real(h).flatten(-2) if self.powers.is_complex() else h


@dataclass(frozen=True)
class DenseCarry:
    """A dense and real, as the transposes of A^1, A^2, A^4, ..., A^T; T is a power of two."""

    doublings: tuple[Tensor, ...]  # each (d, s, s)

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        h, states = h0, []
        for k in range(z.shape[1]):
            h = torch.baddbmm(z[:, k], h, self.doublings[-1])
            states.append(h)
        return torch.stack(states, 1)

    def by(self, h: Tensor, steps: int | Tensor) -> Tensor:
        """Binary powers: one product per bit of `steps`."""
        for k, matrix in enumerate(self.doublings):
            bit = (steps >> k) & 1
            if isinstance(bit, Tensor):
                h = torch.where(bit[:, None] > 0, h @ matrix, h)
            elif bit:
                h = h @ matrix
        return h


@dataclass(frozen=True)
class Blocks:
    """The tables of one bank for blocks of T steps; they depend on the parameters alone."""

    toeplitz: Tensor  # (d, T, T), row i column j: K_{j-i}
    M_in: Tensor  # (d, T, s), row i: A^{T-1-i} B
    M_out: Tensor  # (d, T, s), row j: C A^{j+1}
    carry: DiagonalCarry | DenseCarry


def block_length(length: int) -> int:
    """Steps of a block for a sequence of `length`: a power of two, so that few different tables are ever made."""
    steps = 1
    while steps < length and steps < LONGEST_BLOCK:
        steps *= 2
    return steps


def run(blocks: Blocks, u: Tensor, h0: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """u (b, l, d), l >= 1, from h0 (b, d, s): y (b, l, d) and the state (b, d, s) after each sequence's last step."""
    l, T = u.shape[1], blocks.toeplitz.shape[-1]
    m = (l - 1) // T  # whole blocks before the last one, which has 1 to T steps
    h = h0.transpose(0, 1)[:, None]  # (d, 1, b, s); later (d, m + 1, b, s), the state before each block
    pieces = []
    if m:
        head = u[:, : m * T].unflatten(1, (m, T)).permute(3, 1, 0, 2).contiguous()  # (d, m, b, T)
        flat = head.flatten(1, 2)  # (d, m b, T)
        z = torch.bmm(flat, blocks.M_in).unflatten(1, (m, -1))
        h = torch.cat([h, blocks.carry.along(z, h[:, 0])], 1)
        y = _outputs(blocks, flat, h[:, :-1].flatten(1, 2)).unflatten(1, (m, -1))
        pieces.append(y.permute(2, 1, 3, 0).flatten(1, 2))  # (b, m T, d)
    tail = u[:, m * T :].permute(2, 0, 1).contiguous()  # (d, b, r)
    pieces.append(_outputs(blocks, tail, h[:, -1]).permute(1, 2, 0))
    end = _last_state(blocks, tail, h[:, -1]) if lengths is None else _state_at(blocks, u, h, lengths)
    return torch.cat(pieces, 1), end.transpose(0, 1)


def _outputs(blocks: Blocks, u: Tensor, h: Tensor) -> Tensor:
    """y (d, r, t) of blocks u (d, r, t), t <= T, that start from h (d, r, s)."""
    t = u.shape[-1]
    inside = torch.bmm(u, blocks.toeplitz[:, :t, :t])
    return _contiguous_gradient(torch.baddbmm(inside, h, blocks.M_out[:, :t].mT))


def _last_state(blocks: Blocks, u: Tensor, h: Tensor) -> Tensor:
    """The state (d, b, s) after a block u (d, b, t), t <= T, that starts from h (d, b, s)."""
    t = u.shape[-1]
    return torch.baddbmm(blocks.carry.by(h, t), u, blocks.M_in[:, blocks.M_in.shape[1] - t :])


def _state_at(blocks: Blocks, u: Tensor, h: Tensor, lengths: Tensor) -> Tensor:
    """The state (d, b, s) after lengths[i] steps of sequence i, from the states h (d, m + 1, b, s) before each block.

    What the sequence has of its last block is moved to that block's end, so one M_in serves every length.
    """
    T = blocks.M_in.shape[1]
    block = (lengths - 1) // T
    left = lengths - block * T  # (b,) steps in the last block, 1 to T
    slot = torch.arange(T, device=u.device) - T + left[:, None]  # (b, T) step of the block, negative where none
    row = torch.arange(u.shape[0], device=u.device)
    last = u[row[:, None], (block * T)[:, None] + slot.clamp(min=0)]  # (b, T, d)
    last = last.masked_fill((slot < 0)[..., None], 0)
    start = blocks.carry.by(h[:, block, row], left)
    return torch.baddbmm(start, last.permute(2, 0, 1), blocks.M_in)


def _contiguous_gradient(y: Tensor) -> Tensor:
    """y itself; its gradient is laid out anew once, where four products would else each copy the transposed one."""
    return y if torch.compiler.is_compiling() or not y.requires_grad else _ContiguousGradient.apply(y)


class _ContiguousGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0].view_as(tangents[0])
