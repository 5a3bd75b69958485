"""Forward and backward pass of one set of lanes through a stack, in compiled code: block by block, some rows at a time.

A convolution needs all steps before the parts after it start; a recurrence runs along with them (`recurrence_numba`).
Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.ops_numba import (
    BEND,
    COMBINE,
    CONVOLVE,
    CORRELATE,
    GATHER,
    MAP,
    NORM,
    OUTER,
    POOL,
    ROWS,
    SCATTER,
    SLOPE,
    UNPOOL,
    Kept,
    Ops,
    Work,
    apply_map,
    combine,
    find_saved,
    learn_rows,
    number,
    piece,
    row_at,
)
from resolvent.lowering.cpu.recurrence_numba import run_recurrence, undo_recurrence
from resolvent.lowering.cpu.row_numba import ADD, COPY, SCALE, TIMES
from resolvent.lowering.cpu.tile_numba import PAD
from resolvent.runtime.cfunc_numba import call
from resolvent.runtime.vectors_numba import WIDTH


@piece
def _normalise(ops: Ops, place: int, z: int, out: int, unit: tuple[int, int], count: int) -> None:
    """`unit`: the first row in 1 / deviation, as address and time step."""
    rstd = unit[0] + unit[1] * WIDTH * ops[3]
    call(ops[1][NORM], (z, number(ops, place), out, rstd, ops[4], count, ops[0][at.D]))


@piece
def _differentiate_norm(ops: Ops, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """Rows of g, from step unit[1] on, by the norm whose unit is saved array unit[0]."""
    i, t = unit
    rstd = kept[1] + (i * ops[0][at.L] + t) * WIDTH * ops[3]
    call(ops[1][SLOPE], (g, number(ops, place), find_saved(ops, kept, i, t), rstd, ops[4], count, ops[0][at.D]))


@piece
def _activate(ops: Ops, code: int, x: int, slopes: int, count: int) -> None:
    call(ops[1][BEND], (code, x, slopes, ops[4], count, ops[0][at.D] * WIDTH))


# -- forward -----------------------------------------------------------------------------------------------------------


@piece
def _through(ops: Ops, b: int, y: int, z: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of z = final(W act(ads(y)) + b), starting at y and z; y is overwritten."""
    p, (lo, count) = ops[0], span
    if p[b + at.RAW] >= 0:
        combine(ops, COPY, find_saved(ops, kept, p[b + at.RAW], lo), y, 1, count)
    if p[b + at.ADS] >= 0:
        s, lever = find_saved(ops, kept, p[b + at.SCALED], lo), find_saved(ops, kept, p[b + at.LEVER], lo)
        apply_map(ops, p[b + at.ADS], y, s, count)
        combine(ops, ADD, s, number(ops, p[b + at.ADS_BIAS]), 0, count)
        _activate(ops, p[b + at.SIGMA], s, lever, count)
        call(ops[1][COMBINE], (SCALE, y, s, 1, lever, ops[4], count, p[at.D] * WIDTH))
    if p[b + at.ACT]:
        _activate(ops, p[b + at.ACT], y, find_saved(ops, kept, p[b + at.BENT], lo), count)
    if p[b + at.MIXED] >= 0:
        combine(ops, COPY, find_saved(ops, kept, p[b + at.MIXED], lo), y, 1, count)
    if p[b + at.MIX] >= 0:
        apply_map(ops, p[b + at.MIX], y, z, count)
        combine(ops, ADD, z, number(ops, p[b + at.MIX_BIAS]), 0, count)
    else:
        combine(ops, COPY, z, y, 1, count)
    if p[b + at.FINAL]:
        _activate(ops, p[b + at.FINAL], z, find_saved(ops, kept, p[b + at.CURVED], lo), count)


@piece
def _block(ops: Ops, i: int, work: Work, kept: Kept) -> None:
    """h after block i."""
    p, b, (h, y, u, _, states) = ops[0], at.HEADER + i * at.BLOCK, work
    l, place, unit = p[at.L], p[b + at.NORM], find_saved(ops, kept, p[b + at.UNIT], 0)
    rstd = kept[1] + p[b + at.UNIT] * l * WIDTH * ops[3]
    after = place >= 0 and not p[b + at.PRENORM]  # the norm
    source = h
    if place >= 0 and not after:
        combine(ops, COPY, unit, h, 1, l)
        _normalise(ops, place, unit, u, (rstd, 0), l)
        source = u
    if p[b + at.INPUT] >= 0:
        combine(ops, COPY, find_saved(ops, kept, p[b + at.INPUT], 0), source, 1, l)
    recurs, z = p[b + at.STATES] > 0, unit if after else u
    if not recurs:
        call(ops[1][CONVOLVE], (number(ops, p[b + at.KERNEL]), p[at.D], l, source, y, ops[4], 0))
    for lo in range(0, l, ROWS):
        count, to = min(ROWS, l - lo), row_at(ops, z, lo)
        own = y if recurs else row_at(ops, y, lo)  # a recurrence needs only a few rows, which stay in cache
        if recurs:
            run_recurrence(ops, b, row_at(ops, source, lo), own, states, kept, (lo, count))
        _through(ops, b, own, to, kept, (lo, count))
        if p[b + at.SKIP]:
            combine(ops, ADD, to, row_at(ops, h, lo), 1, count)
        if after:
            _normalise(ops, place, to, row_at(ops, h, lo), (rstd, lo), count)
        else:
            combine(ops, COPY, row_at(ops, h, lo), to, 1, count)


@piece
def one_forward(ops: Ops, outside: tuple[int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (x, out, samples), (h, y, _, scratch, _) = ops[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    call(ops[1][GATHER], (x, samples, l, c, first, y, ops[4]))
    place, unit = p[at.START_NORM], p[at.START_UNIT]
    z = h if place < 0 else find_saved(ops, kept, unit, 0)
    call(ops[1][MAP], (number(ops, p[at.ENTRY]), c, d, y, ops[4], z, ops[4], l))
    combine(ops, ADD, z, number(ops, p[at.ENTRY_BIAS]), 0, l)
    if place >= 0:
        _normalise(ops, place, z, h, (kept[1] + unit * l * WIDTH * ops[3], 0), l)
    for i in range(p[at.LAYERS]):
        _block(ops, i, work, kept)
    begin = l - 1 if p[at.POOL] else 0
    if p[at.END_NORM] >= 0:
        z, own = find_saved(ops, kept, p[at.END_UNIT], begin), row_at(ops, h, begin)
        combine(ops, COPY, z, own, 1, l - begin)
        rstd = kept[1] + p[at.END_UNIT] * l * WIDTH * ops[3]
        _normalise(ops, p[at.END_NORM], z, own, (rstd, begin), l - begin)
    call(ops[1][POOL], (h, begin, l, out, samples, first, scratch, ops[4], d))


# -- backward ----------------------------------------------------------------------------------------------------------


@piece
def _learn_norm(ops: Ops, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """The gradients of gamma and beta."""
    if kept[2]:
        learn_rows(ops, place, g, find_saved(ops, kept, unit[0], unit[1]), kept, count)
        learn_rows(ops, place + ops[0][at.D] * WIDTH, g, 0, kept, count)


@piece
def _learn_map(ops: Ops, places: tuple[int, int], g: int, x: int, kept: Kept, count: int) -> None:
    """The gradients of a matrix (d, d) and its bias, from rows of the output gradient g and the input x."""
    if kept[2]:
        d = ops[0][at.D]
        call(ops[1][OUTER], (kept[2] + places[0] * ops[3], g, d, ops[4], x, d, ops[4], count))
        learn_rows(ops, places[1], g, 0, kept, count)


@piece
def _unthrough(ops: Ops, b: int, g: int, gy: int, scratch: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gy from those of the gradient g of z, starting at g and gy."""
    p, (lo, count) = ops[0], span
    source = g
    if p[b + at.FINAL]:
        combine(ops, COPY, scratch, g, 1, count)
        combine(ops, TIMES, scratch, find_saved(ops, kept, p[b + at.CURVED], lo), 1, count)
        source = scratch
    if p[b + at.MIX] >= 0:
        if kept[2]:
            given = find_saved(ops, kept, p[b + at.MIXED], lo)
            _learn_map(ops, (p[b + at.MIX_BACK], p[b + at.MIX_BIAS]), source, given, kept, count)
        apply_map(ops, p[b + at.MIX_BACK], source, gy, count)
    else:
        combine(ops, COPY, gy, source, 1, count)
    if p[b + at.ACT]:
        combine(ops, TIMES, gy, find_saved(ops, kept, p[b + at.BENT], lo), 1, count)
    if p[b + at.ADS] >= 0:
        more = row_at(ops, scratch, ROWS)
        combine(ops, COPY, scratch, gy, 1, count)
        combine(ops, TIMES, scratch, find_saved(ops, kept, p[b + at.LEVER], lo), 1, count)
        if kept[2]:
            given = find_saved(ops, kept, p[b + at.RAW], lo)
            _learn_map(ops, (p[b + at.ADS_BACK], p[b + at.ADS_BIAS]), scratch, given, kept, count)
        apply_map(ops, p[b + at.ADS_BACK], scratch, more, count)
        combine(ops, TIMES, gy, find_saved(ops, kept, p[b + at.SCALED], lo), 1, count)
        combine(ops, ADD, gy, more, 1, count)


@piece
def _undo_end(ops: Ops, b: int, g: int, gy: int, scratch: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gy from those of the gradient g after the block, which becomes the gradient before its final norm."""
    p, (lo, count) = ops[0], span
    place, unit = p[b + at.NORM], (p[b + at.UNIT], lo)
    if place >= 0 and not p[b + at.PRENORM]:
        _learn_norm(ops, place, g, kept, unit, count)
        _differentiate_norm(ops, place, g, kept, unit, count)
    _unthrough(ops, b, g, gy, scratch, kept, span)


@piece
def _unconvolve(ops: Ops, b: int, work: Work, kept: Kept) -> None:
    """The gradient u of the convolution's input, or that added to g if there is no norm in between."""
    p, (g, gy, u, scratch, _) = ops[0], work
    l, before, k = p[at.L], p[b + at.NORM] >= 0 and p[b + at.PRENORM] != 0, number(ops, p[b + at.KERNEL_BACK])
    for lo in range(0, l, ROWS):
        _undo_end(ops, b, row_at(ops, g, lo), row_at(ops, gy, lo), scratch, kept, (lo, min(ROWS, l - lo)))
    if kept[2]:
        given, to = find_saved(ops, kept, p[b + at.INPUT], 0), kept[2] + p[b + at.KERNEL] * ops[3]
        call(ops[1][CORRELATE], (to, PAD, gy, given, ops[4], l, p[at.D]))
    onto = 2 if p[b + at.SKIP] and not before else 1
    call(ops[1][CONVOLVE], (k, p[at.D], l, gy, u if before else g, ops[4], onto))


@piece
def _unrecur(ops: Ops, b: int, work: Work, kept: Kept) -> None:
    """The same for a recurrence, from the last rows to the first."""
    p, (g, gy, u, scratch, states) = ops[0], work
    l, before = p[at.L], p[b + at.NORM] >= 0 and p[b + at.PRENORM] != 0
    for lo in range((l - 1) // ROWS * ROWS, -1, -ROWS):
        span, own = (lo, min(ROWS, l - lo)), row_at(ops, g, lo)
        _undo_end(ops, b, own, gy, scratch, kept, span)
        to = row_at(ops, u, lo) if before else u
        undo_recurrence(ops, b, gy, to, states, kept, span)
        if not before:
            combine(ops, ADD if p[b + at.SKIP] else COPY, own, to, 1, span[1])


@piece
def _unblock(ops: Ops, i: int, work: Work, kept: Kept) -> None:
    """The gradient g of h before block i from the gradient after it."""
    p, b, (g, _, u, _, _) = ops[0], at.HEADER + i * at.BLOCK, work
    place, unit = p[b + at.NORM], (p[b + at.UNIT], 0)
    if p[b + at.STATES] > 0:
        _unrecur(ops, b, work, kept)
    else:
        _unconvolve(ops, b, work, kept)
    if place >= 0 and p[b + at.PRENORM]:
        l = p[at.L]
        _learn_norm(ops, place, u, kept, unit, l)
        _differentiate_norm(ops, place, u, kept, unit, l)
        combine(ops, ADD if p[b + at.SKIP] else COPY, g, u, 1, l)


@piece
def one_backward(ops: Ops, outside: tuple[int, int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (gx, given, samples, x), (g, gy, u, _, _) = ops[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    begin = l - 1 if p[at.POOL] else 0
    call(ops[1][UNPOOL], (g, begin, l, given, samples, first, ops[4], d))
    if p[at.END_NORM] >= 0:
        _learn_norm(ops, p[at.END_NORM], row_at(ops, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
        _differentiate_norm(ops, p[at.END_NORM], row_at(ops, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
    for i in range(p[at.LAYERS] - 1, -1, -1):
        _unblock(ops, i, work, kept)
    if p[at.START_NORM] >= 0:
        _learn_norm(ops, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
        _differentiate_norm(ops, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
    if kept[2]:
        call(ops[1][GATHER], (x, samples, l, c, first, u, ops[4]))
        call(ops[1][OUTER], (kept[2] + p[at.ENTRY_BACK] * ops[3], g, d, ops[4], u, c, ops[4], l))
        learn_rows(ops, p[at.ENTRY_BIAS], g, 0, kept, l)
    call(ops[1][MAP], (number(ops, p[at.ENTRY_BACK]), d, c, g, ops[4], gy, ops[4], l))
    call(ops[1][SCATTER], (gx, samples, l, c, first, gy, ops[4], 0, l))
