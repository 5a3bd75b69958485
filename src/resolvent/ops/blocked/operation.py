"""Run a bank of d single-input systems over a long input by blocks of T steps: matrix products, without a long kernel.

With the no-delay recurrence x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k, a block starting from the state h gives

    y_j = sum_{i<=j} K_{j-i} u_i + C A^{j+1} h,    K_0 = C B + D, K_i = C A^i B        j = 0..T-1
    h' = A^T h + sum_i A^{T-1-i} B u_i

so all blocks of all sequences share three matrices per channel (Toeplitz, M_out, M_in), only A^T is sequential in time.
The cost is linear in the length, no kernel of full length is made, and initial and final states come for free. States
are stored as reals: s = 2n for n complex states (real and imaginary parts interleaved), s = n for real ones.

Shape letters: b batch, l length, d channels, m blocks of a sequence, T steps of a block, s reals of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked.carry import as_reals, carry, carry_backward, dense_along, form_states
from resolvent.ops.blocked.chain import diagonal_along
from resolvent.runtime.memory import keep_freed_memory
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast

BLOCK = 64  # balances the Toeplitz product (T per step) and the products with the state (2s per step)
Tables = Sequence[Tensor]  # Toeplitz, M_in, M_out and A^T: diagonal (d, n), or dense and transposed (d, s, s)
_NEAR = sorted(range(3 * BLOCK // 4, 5 * BLOCK // 4 + 1), key=lambda T: abs(T - BLOCK))
CHUNK = 2 << 20  # bytes of states processed at once: a core's L2 and its share of L3


@dataclass(frozen=True)
class DiagonalCarry:
    """A = diag(lam): its powers lam^1, ..., lam^T, real or complex."""

    powers: Tensor  # (d, T, n)
    whole: Tensor  # (d, n), lam^T

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        """h_k = A^T h_{k-1} + z_k for z (d, b, m, s) and h0 (d, b, s): the states after each block, (d, b, m, s)."""
        return diagonal_along(self.whole, z, h0)

    def by(self, h: Tensor, steps: int | Tensor) -> Tensor:
        """A^steps h for h (d, b, s), 1 <= steps <= T: one number for all, or one per sequence (b,)."""
        power = self.powers[:, steps - 1]  # (d, n) or (d, b, n)
        if isinstance(steps, int):
            power = power[:, None]
        return as_reals(power * form_states(h, power))


@dataclass(frozen=True)
class DenseCarry:
    """A dense and real: the transposes of A^1, A^2, A^4, ... up to the largest such power within T, and of A^T."""

    doublings: tuple[Tensor, ...]  # each (d, s, s)
    whole: Tensor  # (d, s, s)

    def along(self, z: Tensor, h0: Tensor) -> Tensor:
        return dense_along(self.whole, z, h0)

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

    Up to BLOCK a single block, rounded to a power of two so that few different tables are made. Beyond, a length near
    BLOCK that divides the sequence avoids padding; if there is none, BLOCK itself.
    """
    if length <= BLOCK:
        return next(T for T in (1 << k for k in range(BLOCK.bit_length() + 1)) if length <= T)
    return next((T for T in _NEAR if length % T == 0), BLOCK)


def run(
    blocks: Blocks, u: Tensor, h0: Tensor | None, lengths: Tensor | None = None, by_hand: bool | None = None
) -> tuple[Tensor, Tensor]:
    """u (b, l, d), l >= 1, from h0 (b, d, s): y (b, l, d) and the state (b, d, s) after each sequence's last step.

    h0 None is zero. `by_hand`: use hand-written gradients, valid only without transforms; None checks.
    """
    b, l, d = u.shape
    T = blocks.toeplitz.shape[-1]
    m = -(-l // T)  # blocks
    t = min(l, T)  # steps of each; a single block may be shorter than the tables
    padded = torch.nn.functional.pad(u, (0, 0, 0, m * t - l)) if m * t > l else u
    rows = padded.reshape(b * m, t, d)
    h0 = u.new_zeros(d, b, blocks.M_in.shape[-1]) if h0 is None else h0.transpose(0, 1)
    if m > 1 and u.device.type in ("cpu", "cuda") and (is_untransformed() if by_hand is None else by_hand):
        y, before, end = _Pass.apply(rows, h0, blocks.toeplitz, blocks.M_in, blocks.M_out, blocks.carry.whole)
    else:
        y, before, end = _pass(blocks, rows, h0, m)
    y = y.view(b, m * t, d)
    if m * t > l:  # even a full slice would cost the backward pass a copy
        y = y[:, :l]
    if lengths is not None:
        end = state_at(blocks, u, before, lengths)
    elif m * t > l:
        end = _state_after(blocks, u[:, (m - 1) * t :].permute(2, 0, 1), before[:, :, -1])
    return y, end.transpose(0, 1)


def _channels_first(x: Tensor) -> Tensor:
    """x (r, t, d) as (d, r, t), with contiguous rows, as products need them, but r outermost.

    The copy then processes one block (t, d) after the other, which fits in the L1 cache: in less than half the time
    of a contiguous copy.
    """
    return x.transpose(1, 2).contiguous().transpose(0, 1)


def _pass(blocks: Blocks, u: Tensor, h0: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """From u (b m, t, d) and h0 (d, b, s): y (b m, t, d), the states before each block (d, b, m, s), the last one."""
    T, t = blocks.toeplitz.shape[-1], u.shape[1]
    u = _channels_first(u)  # (d, b m, t)
    z = torch.bmm(u, blocks.M_in[:, T - t :]).unflatten(1, (-1, m))
    before, end = _states(blocks, z, h0, t)
    y = torch.bmm(u, blocks.toeplitz[:, :t, :t])
    y = torch.baddbmm(y, before.flatten(1, 2), blocks.M_out[:, :t].mT)
    return _contiguous_gradient(y).permute(1, 2, 0).contiguous(), before, end


def _states(blocks: Blocks, z: Tensor, h0: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """The states before each block (d, b, m, s) and after the last (d, b, s), from the blocks' contributions z."""
    m = z.shape[2]
    if m == 1:
        return h0[:, :, None], blocks.carry.by(h0, t) + z[:, :, 0]
    head, last = blocks.carry.along(z, h0).split([m - 1, 1], 2)
    return torch.cat([h0[:, :, None], head], 2), last[:, :, 0]


def state_at(blocks: Blocks, u: Tensor, before: Tensor, lengths: Tensor) -> Tensor:
    """The state (d, b, s) after lengths[i] steps of sequence i, from the states before each block (d, b, m, s).

    The steps of a sequence in its last block are shifted to the block's end, so that one M_in applies to every length.
    """
    block = (lengths - 1) // blocks.M_in.shape[1]
    row = torch.arange(u.shape[0], device=u.device)
    return state_within(blocks, u, before[:, row, block], lengths)


def state_within(blocks: Blocks, u: Tensor, before: Tensor, lengths: Tensor) -> Tensor:
    """The same from the state before the last block of each sequence, (d, b, s)."""
    T = blocks.M_in.shape[1]
    block = (lengths - 1) // T
    left = lengths - block * T  # (b,) steps in the last block, 1 to T
    slot = torch.arange(T, device=u.device) - T + left[:, None]  # (b, T) step of the block, negative where none
    row = torch.arange(u.shape[0], device=u.device)
    last = u[row[:, None], (block * T)[:, None] + slot.clamp(min=0)]  # (b, T, d)
    last = last.masked_fill((slot < 0)[..., None], 0)
    return torch.baddbmm(blocks.carry.by(before, left), last.permute(2, 0, 1), blocks.M_in)


def _state_after(blocks: Blocks, u: Tensor, before: Tensor) -> Tensor:
    """The state (d, b, s) after the last, shorter block: its steps u (d, b, left), the state before it (d, b, s)."""
    T, left = blocks.M_in.shape[1], u.shape[-1]
    return torch.baddbmm(blocks.carry.by(before, left), u, blocks.M_in[:, T - left :])


def _contiguous_gradient(y: Tensor) -> Tensor:
    """y itself; its gradient is made contiguous once, instead of copied by each of four products."""
    if y.requires_grad and is_untransformed():
        y.register_hook(lambda g: g if g is None else g.contiguous())
    return y


class _Pass(torch.autograd.Function):
    """`_pass` over whole blocks, a few channels at a time: intermediate results then stay in the cache and need less
    fresh memory, which costs page faults."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, h0: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, before, end = run_blocks(given, h0, tables)
        learnt = any(ctx.needs_input_grad[2:])  # otherwise no gradient depends on u and h, and they are not saved
        ctx.save_for_backward(h0, *tables, *((given, before) if learnt else ()))  # recomputing u is cheaper
        ctx.set_materialize_grads(False)
        ctx.shapes = given.shape, before.shape, h0.shape
        return y, before, end

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        h0, toeplitz, M_in, M_out, whole, *kept = ctx.saved_tensors
        tables = toeplitz, M_in, M_out, whole
        zero = h0.new_zeros(())
        g = [zero.expand(shape) if g is None else g for g, shape in zip(gradients, ctx.shapes, strict=True)]
        if by_graph_only(*g):
            u = kept[0] if kept else zero.expand(ctx.shapes[0]).requires_grad_()
            return gradients_by_graph(_pass_of, (u, h0, *tables), g, ctx.needs_input_grad)
        found = pass_gradients((g[0], gradients[1], g[2]), ctx.shapes[1], tables, kept)
        return *found, *(None,) * (6 - len(found))


def run_blocks(given: Tensor, h0: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """`_pass` of given (b m, T, d) from h0 (d, b, s), without a graph: y, the states before each block, the last."""
    (d, b, s), m = h0.shape, given.shape[0] // max(h0.shape[1], 1)
    keep_freed_memory()
    u = _channels_first(given)  # (d, b m, t)
    y, before, end = u.new_empty(u.shape[1], d, u.shape[2]), u.new_empty(d, b, m, s), u.new_empty(d, b, s)
    for c in _chunks(before):
        toeplitz, M_in, M_out, whole = (table[c] for table in tables)
        carry(whole, torch.bmm(u[c], M_in).view(-1, b, m, s), h0[c], before[c], end[c])
        own = torch.bmm(u[c], toeplitz).baddbmm_(before[c].flatten(1, 2), M_out.mT)
        if u.is_cuda:  # all channels
            return own.permute(1, 2, 0).contiguous(), before, end
        y[:, c] = own.transpose(0, 1)
    return y.transpose(1, 2).contiguous(), before, end  # by blocks (d, t), which fit in the L1 cache


def pass_gradients(
    g: tuple[Tensor, Tensor | None, Tensor], shape: torch.Size, tables: Tables, kept: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of `passed`, of its first two arguments and, if u and the states were saved, of the tables.

    With γ_k the gradient of the state before block k (γ_m: of the last state) and ' the transpose,

        γ_k = ‾A^T γ_{k+1} + ∂y_k M_out,    ∂u_k = ∂y_k Toeplitz' + γ_{k+1} M_in',    ∂h0 = γ_0

    and the gradients of the tables are products of u and h with ∂y and γ, summed over the blocks. g: those of y
    (b m, T, d), of the states before each block (d, b, m, s), `shape`, or None, and of the last state (d, b, s).
    """
    gy, g_end = _channels_first(g[0]), g[2].contiguous()  # once, not in each product
    d, b, m, s = shape
    own = [_channels_first(u) for u in kept[:1]] + [*kept[1:]]
    found = [gy.new_empty(gy.shape), gy.new_empty(d, b, s), *(x.new_empty(x.shape) for x in (tables if kept else ()))]
    for c in _chunks(gy.new_zeros(()).expand(shape)):
        g_state = torch.bmm(gy[c], tables[2][c]).view(-1, b, m, s)
        if g[1] is not None:
            g_state += g[1][c]
        _write_gradients([x[c] for x in found], [x[c] for x in (*tables, *own)], (gy[c], g_state, g_end[c]))
    found[0] = found[0].permute(1, 2, 0)
    return found


def _write_gradients(out: list[Tensor], saved: list[Tensor], g: tuple[Tensor, Tensor, Tensor]) -> None:
    """The gradients of u, h0 and, if u and the states were saved, of the tables, for the channels of one chunk."""
    toeplitz, M_in, _, whole, *kept = saved
    gy, g_state, g_end = g
    g_h0, g_whole = carry_backward(whole, g_state, g_end, kept[1] if kept else None)
    gz = g_state.flatten(1, 2)  # (d, b m, s)
    torch.bmm(gy, toeplitz.mT, out=out[0]).baddbmm_(gz, M_in.mT)
    out[1].copy_(g_h0)
    if g_whole is not None:
        u, h = kept[0], kept[1].flatten(1, 2)
        torch.bmm(u.mT, gy, out=out[2])
        torch.bmm(u.mT, gz, out=out[3])
        torch.bmm(gy.mT, h, out=out[4])
        out[5].copy_(g_whole)


def _pass_of(u: Tensor, h0: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_pass` as a function of tensors; its u (b m, t, d) has whole blocks."""
    toeplitz, M_in, M_out, whole = tables
    carry = DenseCarry((whole,), whole) if whole.dim() == 3 else DiagonalCarry(whole[:, None], whole)
    blocks = Blocks(toeplitz, M_in, M_out, carry)
    return _pass(blocks, u, h0, u.shape[0] // max(h0.shape[1], 1))


def _chunks(states: Tensor) -> list[slice]:
    """Slices of the channels, whose states (d, b, m, s) take about CHUNK bytes each; on a GPU all at once."""
    d = states.shape[0]
    if states.is_cuda:
        return [slice(0, d)]
    size = min(max(CHUNK * d // max(states.numel() * states.element_size(), 1), 1), d)
    return [slice(i, i + size) for i in range(0, d, max(size, 1))]
