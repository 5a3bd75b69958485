"""The recurrence of S5 and LRU in a pass by lanes, some rows at a time:

    h_t = lam h_{t-1} + W_in x_t,    y_t = W_out h_t + D x_t
    γ_t = ‾lam γ_{t+1} + W_out' ∂y_t,    ∂x_t = W_in' γ_t + D ∂y_t

The states are held for as many rows as pass through the maps together; from one such piece to the next only the last
row is carried. If parameters are trained, all states are saved.
"""

from __future__ import annotations

from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.ops_numba import (
    COMBINE,
    MAP,
    OUTER,
    ROWS,
    TURN,
    TURN_SLOPE,
    Kept,
    Ops,
    find_saved,
    learn_rows,
    number,
    piece,
)
from resolvent.lowering.cpu.row_numba import CLEAR, COPY, PLUS
from resolvent.runtime.cfunc_numba import call
from resolvent.runtime.vectors_numba import WIDTH


@piece
def _state(ops: Ops, states: int, t: int) -> int:
    """The address of row t of states."""
    return states + t * ops[0][at.WIDE] * ops[3]


@piece
def _trace(ops: Ops, b: int, kept: Kept, t: int) -> int:
    """The address of the saved state before step t."""
    p = ops[0]
    return _state(ops, kept[3], p[b + at.TRACE] * (p[at.L] + 1) + t)


@piece
def _carry(ops: Ops, code: int, to: int, row: int) -> None:
    """COPY a row of states, or CLEAR it."""
    call(ops[1][COMBINE], (code, to, row, 0, to, 0, 1, ops[0][at.WIDE]))


@piece
def _past(ops: Ops, b: int, x: int, y: int, count: int) -> None:
    """Add D x to rows of y."""
    p = ops[0]
    call(ops[1][COMBINE], (PLUS, y, number(ops, p[b + at.PAST]), 0, x, ops[4], count, p[at.D] * WIDTH))


@piece
def run_recurrence(ops: Ops, b: int, x: int, y: int, states: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of y from those of x, starting at x and y: from the first step of a sequence to the last."""
    p, (lo, count) = ops[0], span
    d, n, wide, learnt = p[at.D], p[b + at.STATES], p[at.WIDE], p[b + at.TRACE] >= 0
    before = _trace(ops, b, kept, lo) if learnt else states
    h = _state(ops, before, 1)
    if lo == 0:
        _carry(ops, CLEAR, before, before)
    call(ops[1][MAP], (number(ops, p[b + at.IN]), d, n, x, ops[4], h, wide, count))
    call(ops[1][TURN], (number(ops, p[b + at.LAM]), n // 2, h, wide, count, 0))
    call(ops[1][MAP], (number(ops, p[b + at.OUT]), n, d, h, wide, y, ops[4], count))
    _past(ops, b, x, y, count)
    if not learnt:
        _carry(ops, COPY, states, _state(ops, states, count))


@piece
def undo_recurrence(ops: Ops, b: int, gy: int, gx: int, states: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gx from those of the gradient gy of y: from the last step of a sequence to the first."""
    p, (lo, count) = ops[0], span
    d, n, wide, last = p[at.D], p[b + at.STATES], p[at.WIDE], _state(ops, states, ROWS)
    if lo + count == p[at.L]:
        after = _state(ops, states, count)
        _carry(ops, CLEAR, after, after)
    call(ops[1][MAP], (number(ops, p[b + at.OUT_BACK]), d, n, gy, ops[4], states, wide, count))
    call(ops[1][TURN], (number(ops, p[b + at.LAM]), n // 2, states, wide, count, 1))
    if kept[2]:
        _learn(ops, b, gy, states, kept, span)
    call(ops[1][MAP], (number(ops, p[b + at.IN_BACK]), n, d, states, wide, gx, ops[4], count))
    _past(ops, b, gy, gx, count)
    _carry(ops, COPY, last, states)


@piece
def _learn(ops: Ops, b: int, gy: int, gamma: int, kept: Kept, span: tuple[int, int]) -> None:
    """The gradients of W_out, W_in, lam and D from some rows."""
    p, (lo, count) = ops[0], span
    d, n, wide, grads = p[at.D], p[b + at.STATES], p[at.WIDE], kept[2]
    given, before = find_saved(ops, kept, p[b + at.INPUT], lo), _trace(ops, b, kept, lo)
    h = _state(ops, before, 1)
    call(ops[1][OUTER], (grads + p[b + at.OUT_BACK] * ops[3], gy, d, ops[4], h, n, wide, count))
    call(ops[1][OUTER], (grads + p[b + at.IN_BACK] * ops[3], gamma, n, wide, given, d, ops[4], count))
    call(ops[1][TURN_SLOPE], (grads + p[b + at.LAM] * ops[3], n // 2, before, gamma, wide, count))
    learn_rows(ops, p[b + at.PAST], gy, given, kept, count)
