"""Run a bank of d single-input systems over a long input by blocks of T steps: matrix products in place of a kernel.

With the no-delay recurrence x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k, a block that starts from the state h gives

    y_j = sum_{i<=j} K_{j-i} u_i + C A^{j+1} h,    K_0 = C B + D, K_i = C A^i B        j = 0..T-1
    h' = A^T h + sum_i A^{T-1-i} B u_i

so all blocks of all sequences share three matrices per channel (Toeplitz, M_out, M_in), and only A^T runs along time.
The cost is linear in the length, no kernel of full length exists, and the states in and out come free. States travel in
real form: s = 2n reals for n complex states (real and imaginary part in turn), s = n for real ones.

Shape letters: b batch, l length, d channels, m blocks of a sequence, T steps of a block, s reals of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.scan import linear_scan

BLOCK = 64  # where the Toeplitz product (T per step) and the products with the state (2s per step) balance


@dataclass(frozen=True)
class DiagonalCarry:
    """A = diag(lam): its powers lam^1, ..., lam^T, real or complex."""

    powers: Tensor  # (d, T, n)
    whole: Tensor  # (d, n), lam^T

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        """h_k = A^T h_{k-1} + z_k for z (d, b, m, s) and h0 (d, b, s): the states after each block, (d, b, m, s)."""
        a = self.whole[:, None, None]  # (d, 1, 1, n)
        return self._reals(linear_scan(a, self._own(z), self._own(h0)))

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
    """A dense and real: the transposes of A^1, A^2, A^4, ... up to the largest such power within T, and of A^T."""

    doublings: tuple[Tensor, ...]  # each (d, s, s)
    whole: Tensor  # (d, s, s)

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        h, states = h0, []
        for z_k in z.unbind(2):
            h = torch.baddbmm(z_k, h, self.whole)
            states.append(h)
        return torch.stack(states, 2)

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
    """Steps of a block for a sequence of `length`.

    Up to BLOCK one block does, sized to a power of two so that few different tables are made. Beyond it a length near
    BLOCK that divides the sequence spares the padding; where there is none, BLOCK itself.
    """
    if length <= BLOCK:
        return next(T for T in (1 << k for k in range(BLOCK.bit_length() + 1)) if length <= T)
    near = sorted(range(3 * BLOCK // 4, 5 * BLOCK // 4 + 1), key=lambda T: abs(T - BLOCK))
    return next((T for T in near if length % T == 0), BLOCK)


def run(blocks: Blocks, u: Tensor, h0: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """u (b, l, d), l >= 1, from h0 (b, d, s): y (b, l, d) and the state (b, d, s) after each sequence's last step."""
    b, l, d = u.shape
    T = blocks.toeplitz.shape[-1]
    m = -(-l // T)  # blocks
    t = min(l, T)  # steps of each; a single block may be shorter than the tables
    padded = torch.nn.functional.pad(u, (0, 0, 0, m * t - l)) if m * t > l else u
    flat = padded.reshape(b * m * t, d).t().contiguous().view(d, b * m, t)
    z = torch.bmm(flat, blocks.M_in[:, T - t :]).view(d, b, m, -1)
    before, end = _states(blocks, z, h0.transpose(0, 1), t)  # (d, b, m, s), (d, b, s)
    y = _outputs(blocks, flat, before.flatten(1, 2))
    y = _contiguous_gradient(y.view(d, b * m * t)).t().contiguous().view(b, m * t, d)[:, :l]
    if lengths is not None:
        end = _state_at(blocks, u, before, lengths)
    elif m * t > l:
        end = _state_after(blocks, u[:, (m - 1) * t :].permute(2, 0, 1), before[:, :, -1])
    return y, end.transpose(0, 1)


def _states(blocks: Blocks, z: Tensor, h0: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """The states before each block (d, b, m, s) and after the last (d, b, s), from what each block adds, z."""
    m = z.shape[2]
    if m == 1:
        return h0[:, :, None], blocks.carry.by(h0, t) + z[:, :, 0]
    head, last = blocks.carry.along(z, h0).split([m - 1, 1], 2)
    return torch.cat([h0[:, :, None], head], 2), last[:, :, 0]


def _outputs(blocks: Blocks, u: Tensor, h: Tensor) -> Tensor:
    """y (d, r, t) of r blocks u (d, r, t), t <= T, that start from h (d, r, s)."""
    t = u.shape[-1]
    return torch.baddbmm(torch.bmm(u, blocks.toeplitz[:, :t, :t]), h, blocks.M_out[:, :t].mT)


def _state_at(blocks: Blocks, u: Tensor, before: Tensor, lengths: Tensor) -> Tensor:
    """The state (d, b, s) after lengths[i] steps of sequence i, from the states before each block (d, b, m, s).

    What a sequence has of its last block is moved to the end of that block, so that one M_in serves every length.
    """
    T = blocks.M_in.shape[1]
    block = (lengths - 1) // T
    left = lengths - block * T  # (b,) steps in the last block, 1 to T
    slot = torch.arange(T, device=u.device) - T + left[:, None]  # (b, T) step of the block, negative where none
    row = torch.arange(u.shape[0], device=u.device)
    last = u[row[:, None], (block * T)[:, None] + slot.clamp(min=0)]  # (b, T, d)
    last = last.masked_fill((slot < 0)[..., None], 0)
    return torch.baddbmm(blocks.carry.by(before[:, row, block], left), last.permute(2, 0, 1), blocks.M_in)


def _state_after(blocks: Blocks, u: Tensor, before: Tensor) -> Tensor:
    """The state (d, b, s) after the last, shorter block: its steps u (d, b, left), the state before it (d, b, s)."""
    T, left = blocks.M_in.shape[1], u.shape[-1]
    return torch.baddbmm(blocks.carry.by(before, left), u, blocks.M_in[:, T - left :])


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
