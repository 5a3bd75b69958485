"""The walk of one cohort through a stack and back, in compiled code: block after block, some rows at a time.

A convolution sees all steps before the parts behind it start; a recurrence goes along with them (`recur_numba`).
Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.ops_numba import (
    BEND,
    CONVOLVE,
    CORRELATE,
    GATHER,
    MAP,
    MEET,
    NORM,
    OUTER,
    POOL,
    ROWS,
    SCATTER,
    SLOPE,
    UNPOOL,
    Kept,
    Net,
    Work,
    apply_map,
    find_saved,
    learn_rows,
    meet,
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
def _normalise(net: Net, place: int, z: int, out: int, unit: tuple[int, int], count: int) -> None:
    """`unit`: the first row's place in 1 / deviation, as its address and time step."""
    rstd = unit[0] + unit[1] * WIDTH * net[3]
    call(net[1][NORM], (z, number(net, place), out, rstd, net[4], count, net[0][at.D]))


@piece
def _differentiate_norm(net: Net, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """Rows of g, from step unit[1] on, by the norm whose unit is saved array unit[0]."""
    i, t = unit
    rstd = kept[1] + (i * net[0][at.L] + t) * WIDTH * net[3]
    call(net[1][SLOPE], (g, number(net, place), find_saved(net, kept, i, t), rstd, net[4], count, net[0][at.D]))


@piece
def _activate(net: Net, code: int, x: int, slopes: int, count: int) -> None:
    call(net[1][BEND], (code, x, slopes, net[4], count, net[0][at.D] * WIDTH))


# -- forward -----------------------------------------------------------------------------------------------------------


@piece
def _through(net: Net, b: int, y: int, z: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of z = final(W act(ads(y)) + b), the first of them at y and z; y is spent."""
    p, (lo, count) = net[0], span
    if p[b + at.RAW] >= 0:
        meet(net, COPY, find_saved(net, kept, p[b + at.RAW], lo), y, 1, count)
    if p[b + at.ADS] >= 0:
        s, lever = find_saved(net, kept, p[b + at.SCALED], lo), find_saved(net, kept, p[b + at.LEVER], lo)
        apply_map(net, p[b + at.ADS], y, s, count)
        meet(net, ADD, s, number(net, p[b + at.ADS_BIAS]), 0, count)
        _activate(net, p[b + at.SIGMA], s, lever, count)
        call(net[1][MEET], (SCALE, y, s, 1, lever, net[4], count, p[at.D] * WIDTH))
    if p[b + at.ACT]:
        _activate(net, p[b + at.ACT], y, find_saved(net, kept, p[b + at.BENT], lo), count)
    if p[b + at.MIXED] >= 0:
        meet(net, COPY, find_saved(net, kept, p[b + at.MIXED], lo), y, 1, count)
    if p[b + at.MIX] >= 0:
        apply_map(net, p[b + at.MIX], y, z, count)
        meet(net, ADD, z, number(net, p[b + at.MIX_BIAS]), 0, count)
    else:
        meet(net, COPY, z, y, 1, count)
    if p[b + at.FINAL]:
        _activate(net, p[b + at.FINAL], z, find_saved(net, kept, p[b + at.CURVED], lo), count)


@piece
def _block(net: Net, i: int, work: Work, kept: Kept) -> None:
    """h after block i."""
    p, b, (h, y, u, _, states) = net[0], at.HEADER + i * at.BLOCK, work
    l, place, unit = p[at.L], p[b + at.NORM], find_saved(net, kept, p[b + at.UNIT], 0)
    rstd = kept[1] + p[b + at.UNIT] * l * WIDTH * net[3]
    after = place >= 0 and not p[b + at.PRENORM]  # the norm
    source = h
    if place >= 0 and not after:
        meet(net, COPY, unit, h, 1, l)
        _normalise(net, place, unit, u, (rstd, 0), l)
        source = u
    if p[b + at.INPUT] >= 0:
        meet(net, COPY, find_saved(net, kept, p[b + at.INPUT], 0), source, 1, l)
    recurs, z = p[b + at.STATES] > 0, unit if after else u
    if not recurs:
        call(net[1][CONVOLVE], (number(net, p[b + at.KERNEL]), p[at.D], l, source, y, net[4], 0))
    for lo in range(0, l, ROWS):
        count, to = min(ROWS, l - lo), row_at(net, z, lo)
        own = y if recurs else row_at(net, y, lo)  # a recurrence needs but a few rows, which stay warm
        if recurs:
            run_recurrence(net, b, row_at(net, source, lo), own, states, kept, (lo, count))
        _through(net, b, own, to, kept, (lo, count))
        if p[b + at.SKIP]:
            meet(net, ADD, to, row_at(net, h, lo), 1, count)
        if after:
            _normalise(net, place, to, row_at(net, h, lo), (rstd, lo), count)
        else:
            meet(net, COPY, row_at(net, h, lo), to, 1, count)


@piece
def one_forward(net: Net, outside: tuple[int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (x, out, samples), (h, y, _, scratch, _) = net[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    call(net[1][GATHER], (x, samples, l, c, first, y, net[4]))
    place, unit = p[at.START_NORM], p[at.START_UNIT]
    z = h if place < 0 else find_saved(net, kept, unit, 0)
    call(net[1][MAP], (number(net, p[at.ENTRY]), c, d, y, net[4], z, net[4], l))
    meet(net, ADD, z, number(net, p[at.ENTRY_BIAS]), 0, l)
    if place >= 0:
        _normalise(net, place, z, h, (kept[1] + unit * l * WIDTH * net[3], 0), l)
    for i in range(p[at.LAYERS]):
        _block(net, i, work, kept)
    begin = l - 1 if p[at.POOL] else 0
    if p[at.END_NORM] >= 0:
        z, own = find_saved(net, kept, p[at.END_UNIT], begin), row_at(net, h, begin)
        meet(net, COPY, z, own, 1, l - begin)
        rstd = kept[1] + p[at.END_UNIT] * l * WIDTH * net[3]
        _normalise(net, p[at.END_NORM], z, own, (rstd, begin), l - begin)
    call(net[1][POOL], (h, begin, l, out, samples, first, scratch, net[4], d))


# -- backward ----------------------------------------------------------------------------------------------------------


@piece
def _learn_norm(net: Net, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """Those of gamma and beta."""
    if kept[2]:
        learn_rows(net, place, g, find_saved(net, kept, unit[0], unit[1]), kept, count)
        learn_rows(net, place + net[0][at.D] * WIDTH, g, 0, kept, count)


@piece
def _learn_map(net: Net, places: tuple[int, int], g: int, x: int, kept: Kept, count: int) -> None:
    """Those of a matrix (d, d) and its bias: rows of the gradient g after it and of what it was given, x."""
    if kept[2]:
        d = net[0][at.D]
        call(net[1][OUTER], (kept[2] + places[0] * net[3], g, d, net[4], x, d, net[4], count))
        learn_rows(net, places[1], g, 0, kept, count)


@piece
def _unthrough(net: Net, b: int, g: int, gy: int, scratch: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gy from those of the gradient g of z, the first of them at g and gy."""
    p, (lo, count) = net[0], span
    source = g
    if p[b + at.FINAL]:
        meet(net, COPY, scratch, g, 1, count)
        meet(net, TIMES, scratch, find_saved(net, kept, p[b + at.CURVED], lo), 1, count)
        source = scratch
    if p[b + at.MIX] >= 0:
        if kept[2]:
            given = find_saved(net, kept, p[b + at.MIXED], lo)
            _learn_map(net, (p[b + at.MIX_BACK], p[b + at.MIX_BIAS]), source, given, kept, count)
        apply_map(net, p[b + at.MIX_BACK], source, gy, count)
    else:
        meet(net, COPY, gy, source, 1, count)
    if p[b + at.ACT]:
        meet(net, TIMES, gy, find_saved(net, kept, p[b + at.BENT], lo), 1, count)
    if p[b + at.ADS] >= 0:
        more = row_at(net, scratch, ROWS)
        meet(net, COPY, scratch, gy, 1, count)
        meet(net, TIMES, scratch, find_saved(net, kept, p[b + at.LEVER], lo), 1, count)
        if kept[2]:
            given = find_saved(net, kept, p[b + at.RAW], lo)
            _learn_map(net, (p[b + at.ADS_BACK], p[b + at.ADS_BIAS]), scratch, given, kept, count)
        apply_map(net, p[b + at.ADS_BACK], scratch, more, count)
        meet(net, TIMES, gy, find_saved(net, kept, p[b + at.SCALED], lo), 1, count)
        meet(net, ADD, gy, more, 1, count)


@piece
def _undo_end(net: Net, b: int, g: int, gy: int, scratch: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gy from those of the gradient g after the block, which becomes that before the norm that ends it."""
    p, (lo, count) = net[0], span
    place, unit = p[b + at.NORM], (p[b + at.UNIT], lo)
    if place >= 0 and not p[b + at.PRENORM]:
        _learn_norm(net, place, g, kept, unit, count)
        _differentiate_norm(net, place, g, kept, unit, count)
    _unthrough(net, b, g, gy, scratch, kept, span)


@piece
def _unconvolve(net: Net, b: int, work: Work, kept: Kept) -> None:
    """The gradient u of what the convolution was given, or that added to g where no norm stands between."""
    p, (g, gy, u, scratch, _) = net[0], work
    l, before, k = p[at.L], p[b + at.NORM] >= 0 and p[b + at.PRENORM] != 0, number(net, p[b + at.KERNEL_BACK])
    for lo in range(0, l, ROWS):
        _undo_end(net, b, row_at(net, g, lo), row_at(net, gy, lo), scratch, kept, (lo, min(ROWS, l - lo)))
    if kept[2]:
        given, to = find_saved(net, kept, p[b + at.INPUT], 0), kept[2] + p[b + at.KERNEL] * net[3]
        call(net[1][CORRELATE], (to, PAD, gy, given, net[4], l, p[at.D]))
    onto = 2 if p[b + at.SKIP] and not before else 1
    call(net[1][CONVOLVE], (k, p[at.D], l, gy, u if before else g, net[4], onto))


@piece
def _unrecur(net: Net, b: int, work: Work, kept: Kept) -> None:
    """The same for a recurrence, from the last rows to the first."""
    p, (g, gy, u, scratch, states) = net[0], work
    l, before = p[at.L], p[b + at.NORM] >= 0 and p[b + at.PRENORM] != 0
    for lo in range((l - 1) // ROWS * ROWS, -1, -ROWS):
        span, own = (lo, min(ROWS, l - lo)), row_at(net, g, lo)
        _undo_end(net, b, own, gy, scratch, kept, span)
        to = row_at(net, u, lo) if before else u
        undo_recurrence(net, b, gy, to, states, kept, span)
        if not before:
            meet(net, ADD if p[b + at.SKIP] else COPY, own, to, 1, span[1])


@piece
def _unblock(net: Net, i: int, work: Work, kept: Kept) -> None:
    """The gradient g of h before block i from that after it."""
    p, b, (g, _, u, _, _) = net[0], at.HEADER + i * at.BLOCK, work
    place, unit = p[b + at.NORM], (p[b + at.UNIT], 0)
    if p[b + at.STATES] > 0:
        _unrecur(net, b, work, kept)
    else:
        _unconvolve(net, b, work, kept)
    if place >= 0 and p[b + at.PRENORM]:
        l = p[at.L]
        _learn_norm(net, place, u, kept, unit, l)
        _differentiate_norm(net, place, u, kept, unit, l)
        meet(net, ADD if p[b + at.SKIP] else COPY, g, u, 1, l)


@piece
def one_backward(net: Net, outside: tuple[int, int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (gx, given, samples, x), (g, gy, u, _, _) = net[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    begin = l - 1 if p[at.POOL] else 0
    call(net[1][UNPOOL], (g, begin, l, given, samples, first, net[4], d))
    if p[at.END_NORM] >= 0:
        _learn_norm(net, p[at.END_NORM], row_at(net, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
        _differentiate_norm(net, p[at.END_NORM], row_at(net, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
    for i in range(p[at.LAYERS] - 1, -1, -1):
        _unblock(net, i, work, kept)
    if p[at.START_NORM] >= 0:
        _learn_norm(net, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
        _differentiate_norm(net, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
    if kept[2]:
        call(net[1][GATHER], (x, samples, l, c, first, u, net[4]))
        call(net[1][OUTER], (kept[2] + p[at.ENTRY_BACK] * net[3], g, d, net[4], u, c, net[4], l))
        learn_rows(net, p[at.ENTRY_BIAS], g, 0, kept, l)
    call(net[1][MAP], (number(net, p[at.ENTRY_BACK]), d, c, g, net[4], gy, net[4], l))
    call(net[1][SCATTER], (gx, samples, l, c, first, gy, net[4], 0, l))
