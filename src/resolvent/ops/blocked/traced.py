"""The blocked pass for compilers and exports: two opaque nodes with real inputs and outputs, for any length.

    resolvent::diagonal_tables  first number, lam, weight, gain of a bank -> Toeplitz, M_in, M_out, lam^1 ... lam^T
    resolvent::blocked_pass     u (b, l, d), h0 (b, d, s) and tables -> y (b, l, d), states before blocks (d, b, m s)

Complex numbers are passed as real pairs (..., 2). The state after a sequence's last step is computed in torch
operations outside the pass, so that a graph that does not use it does not compute it. Inside `plain_operations()` the
pass consists of torch's own real operations, too (see `ops.plain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked.operation import BLOCK, Blocks
from resolvent.ops.blocked.tables import DiagonalBank, first_number, make_tables
from resolvent.ops.library import register
from resolvent.ops.opaque import Opaque
from resolvent.ops.pairs import join_pairs, stack_parts
from resolvent.runtime.transforms import gradients_by_graph, is_recorded, is_untransformed


@dataclass(frozen=True)
class PairCarry:
    """`DiagonalCarry` in real pairs."""

    powers: Tensor  # (d, T, n, 2), or (d, T, n)
    whole: Tensor  # (d, n, 2), or (d, n)

    def by(self, h: Tensor, steps: Tensor) -> Tensor:
        """A^steps h for h (d, b, s), 1 <= steps <= T, one for each sequence (b,)."""
        power = self.powers[:, steps - 1]  # (d, b, n, 2) or (d, b, n)
        return plain.times(power, h, power.dim() == 4)


def block_length(length: int) -> int:
    """Steps of a block: BLOCK for every length, unless it is known to be shorter."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

    short = (1 << k for k in range(1, BLOCK.bit_length() - 1))
    known = bool if torch.jit.is_tracing() else statically_known_true  # there sizes are tensors
    return next((T for T in short if known(length <= T)), BLOCK)


def diagonal_blocks(bank: DiagonalBank, T: int, dtype: torch.dtype, delay: bool = False) -> Blocks:
    """The tables of a bank with numbers as pairs, or real."""
    now = first_number(bank, delay).to(dtype)  # first: an operation's tables have the type of its first parameter
    given = [now, stack_parts(bank.lam), stack_parts(bank.weight)]
    given += [] if bank.gain is None else [stack_parts(bank.gain)]
    toeplitz, M_in, M_out, powers, whole = _TABLES.operator(given, "", T, delay)
    return Blocks(toeplitz, M_in, M_out, PairCarry(powers, whole))  # type: ignore[arg-type]


def run(blocks: Blocks, u: Tensor, h0: Tensor | None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `operation.run`: y (b, l, d), and the state (b, d, s) after each sequence's last step; h0 None is zero.

    A single real state gets an unused second one: otherwise the tracer would check whether the states before all blocks
    are a single number, and specialise the length.
    """
    b, l, d = u.shape
    s = blocks.M_in.shape[-1]
    if h0 is None:
        h0 = u.new_zeros(b, d, s)
    own = blocks.toeplitz, blocks.M_in, blocks.M_out, blocks.carry.whole
    given = (h0, *own) if s > 1 else (F.pad(h0, (0, 1)), own[0], *(F.pad(t, (0, 1)) for t in own[1:]))
    y, before = plain.blocked_pass(u, *given) if plain.is_chosen() else _pass(u, *given)
    if lengths is None:
        lengths = torch.full((b,), l, dtype=torch.int64, device=u.device)
    first = (lengths - 1) // blocks.M_in.shape[1] * max(s, 2)  # the position of the state before each one's last block
    at = first[:, None] + torch.arange(s, device=u.device)  # (b, s)
    state = before.gather(2, at.expand(d, -1, -1))
    return y, blocked.state_within(blocks, u, state, lengths).transpose(0, 1)


# -- the tables --------------------------------------------------------------------------------------------------------


def _make_tables(given: Sequence[Tensor], _: str, T: int, delay: bool) -> list[Tensor]:
    now, lam, weight, *gain = given
    bank = DiagonalBank(join_pairs(lam, 3), join_pairs(weight, 3), gain=join_pairs(gain[0], 3) if gain else None)
    by_hand = is_untransformed() and not is_recorded(lam)
    return [stack_parts(t).contiguous() for t in make_tables(bank, now, T, delay, by_hand)]


def tables_shapes(given: Sequence[Tensor], T: int, like: int) -> list[tuple[int, ...]]:
    """Those of Toeplitz, M_in, M_out, powers and A^T, where given[like] is (d, n) or in pairs (d, n, 2)."""
    d, n, *number = given[like].shape
    s = 2 * n if number else n
    return [(d, T, T), (d, T, s), (d, T, s), (d, T, n, *number), (d, n, *number)]


_TABLES = Opaque("diagonal_tables", _make_tables, lambda given, _, T, delay: tables_shapes(given, T, 1))


# -- the pass ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("resolvent::blocked_pass", mutates_args=())
def _pass(u: Tensor, h0: Tensor, toeplitz: Tensor, M_in: Tensor, M_out: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    rows, tables = _rows(u, toeplitz.shape[-1]), _cut(u, toeplitz, M_in, M_out, whole)
    y, before, _ = blocked.run_blocks(rows, h0.transpose(0, 1).contiguous(), tables)
    return y.view(u.shape[0], -1, u.shape[2])[:, : u.shape[1]].contiguous(), before.flatten(2)


def _rows(u: Tensor, T: int) -> Tensor:
    """u (b, l, d) as blocks (b m, T, d), zeros beyond the end; a single block is not padded."""
    l, d = u.shape[1:]
    if l <= T:
        return u
    return (F.pad(u, (0, 0, 0, -l % T)) if l % T else u).reshape(-1, T, d)


def _cut(u: Tensor, toeplitz: Tensor, M_in: Tensor, M_out: Tensor, whole: Tensor) -> tuple[Tensor, ...]:
    """The tables for `blocked.passed`, cut to u's length if u is a single block."""
    T = toeplitz.shape[-1]
    t = min(u.shape[1], T)
    return toeplitz[:, :t, :t], M_in[:, T - t :], M_out[:, :t], _whole(whole, M_in.shape[-1])


def _whole(whole: Tensor, s: int) -> Tensor:
    """A^T in the form of `blocked.carry`: (d, n) real or complex, or (d, s, s)."""
    return torch.view_as_complex(whole.contiguous()) if whole.dim() == 3 and whole.shape[1] != s else whole


@_pass.register_fake
def _(u: Tensor, h0: Tensor, toeplitz: Tensor, M_in: Tensor, M_out: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    (b, l, d), T, s = u.shape, toeplitz.shape[-1], M_in.shape[-1]
    return u.new_empty(b, l, d), u.new_empty(d, b, (l + T - 1) // T * s)


@torch.library.custom_op("resolvent::blocked_pass_backward", mutates_args=())
def _pass_backward(
    gy: Tensor, g_before: Tensor | None, u: Tensor, before: Tensor, toeplitz: Tensor, M_in: Tensor, M_out: Tensor,
    whole: Tensor, learn: bool,
) -> list[Tensor]:  # fmt: skip
    T, s = toeplitz.shape[-1], M_in.shape[-1]
    states = before.unflatten(2, (-1, s))
    tables = _cut(u, toeplitz, M_in, M_out, whole)
    kept = (_rows(u, T), states) if learn else ()
    g_states = None if g_before is None else g_before.unflatten(2, (-1, s))
    g = _rows(gy, T), g_states, gy.new_zeros(()).expand(*before.shape[:2], s)
    gu, gh0, *found = blocked.pass_gradients(g, states.shape, tables, kept)
    gu = gu.reshape(u.shape[0], -1, u.shape[2])[:, : u.shape[1]].contiguous()
    return [gu, gh0.transpose(0, 1).contiguous(), *(_uncut(found, (toeplitz, M_in, M_out, whole)) if learn else ())]


def _uncut(found: list[Tensor], tables: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the whole tables from those of the parts used by a short block."""
    toeplitz, M_in, M_out, whole = found
    left = tables[0].shape[-1] - toeplitz.shape[-1]
    if left:
        toeplitz, M_in = F.pad(toeplitz, (0, left, 0, left)), F.pad(M_in, (0, 0, left, 0))
        M_out = F.pad(M_out, (0, 0, 0, left))
    return [toeplitz, M_in, M_out, stack_parts(whole).contiguous()]


@_pass_backward.register_fake
def _(gy: Tensor, g_before: Tensor | None, u: Tensor, before: Tensor, *rest: Any) -> list[Tensor]:
    *tables, learn = rest
    found = [u.new_empty(u.shape), u.new_empty(u.shape[0], u.shape[2], tables[1].shape[-1])]
    return [*found, *(t.new_empty(t.shape) for t in tables)] if learn else found


def _pass_saved(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.set_materialize_grads(False)


def _pass_gradients(ctx: Any, gy: Tensor | None, g_before: Tensor | None) -> tuple[Tensor | None, ...]:
    u, h0, *tables, before = ctx.saved_tensors
    gy = torch.zeros_like(u) if gy is None else gy
    if torch.is_grad_enabled():
        return gradients_by_graph(plain.blocked_pass, (u, h0, *tables), (gy, g_before), ctx.needs_input_grad)
    learn = any(ctx.needs_input_grad[2:])
    found = _pass_backward(gy.contiguous(), g_before, u, before, *tables, learn)
    return *found, *(None,) * (6 - len(found))


register(_pass, _pass_backward, _pass_gradients, _pass_saved)
