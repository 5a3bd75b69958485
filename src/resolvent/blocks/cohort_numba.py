"""`cohort` on the CPU, compiled by numba: WIDTH samples walk through the whole stack before the next ones start.

Layer by layer over a whole batch, every activation leaves the cache before it is read again. Here the activations of
one cohort, (l, d, WIDTH) each, stay in a core's own cache from entry to pooling and back. Cohorts share nothing but
what they read, so that the number of threads cannot change a bit of the result.

Everything here is addresses: what computes is in the leaves, compiled for each dtype (`leaf_numba`).
Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from numba import carray, types
from torch import Tensor

from resolvent.blocks import cohort_layout as at
from resolvent.blocks import curve_numba, outer_numba, row_norm_numba, row_numba, tile_numba
from resolvent.blocks.cohort_layout import Plan
from resolvent.blocks.leaf_numba import call
from resolvent.blocks.row_numba import ADD, COPY, SCALE, TIMES
from resolvent.blocks.tile_numba import PAD
from resolvent.scan.linear_numba import Array, jit
from resolvent.scan.memory import fresh, plain
from resolvent.scan.rows_numba import WIDTH
from resolvent.scan.team import HEAD, kernel, pointer, run, share
from resolvent.scan.workers import threads_for

ROWS = 8  # time steps that go through the maps together
TYPES = {torch.float32: types.float32, torch.float64: types.float64}
_LEAVES = (
    tile_numba.mapped,
    tile_numba.convolved,
    curve_numba.bent,
    row_norm_numba.normed,
    row_norm_numba.sloped,
    row_numba.met,
    row_numba.gathered,
    row_numba.scattered,
    row_numba.pooled,
    row_numba.unpooled,
    outer_numba.outer,
    outer_numba.correlated,
    outer_numba.summed,
)
COUNT = len(_LEAVES)
_MAP, _CONVOLVE, _BEND, _NORM, _SLOPE, _MEET, _GATHER, _SCATTER, _POOL, _UNPOOL = range(10)
_OUTER, _CORRELATE, _SUM = range(10, COUNT)

Net = tuple[Array, Array, int, int, int]  # program, leaves, address of the numbers, bytes of one, numbers of a row
Work = tuple[int, int, int, int]  # h, y, u (l, row) and scratch (2 ROWS, row)
Kept = tuple[int, int, int]  # saved (arrays, l, row), 1 / deviation (norms, l, WIDTH), gradients of the numbers or 0


@jit
def _at(net: Net, array: int, t: int) -> int:
    """The address of row t."""
    return array + t * net[4] * net[3]


@jit
def _number(net: Net, place: int) -> int:
    return net[2] + place * net[3]


@jit
def _saved(net: Net, kept: Kept, i: int, t: int) -> int:
    """The address of row t of saved array i."""
    return _at(net, kept[0], i * net[0][at.L] + t)


@jit
def _mapped(net: Net, place: int, x: int, y: int, count: int) -> None:
    """By a matrix (d, d)."""
    d = net[0][at.D]
    call(net[1][_MAP], (_number(net, place), d, d, x, y, net[4], count))


@jit
def _normed(net: Net, place: int, z: int, out: int, unit: tuple[int, int], count: int) -> None:
    """`unit`: the first row's place in 1 / deviation, as its address and time step."""
    rstd = unit[0] + unit[1] * WIDTH * net[3]
    call(net[1][_NORM], (z, _number(net, place), out, rstd, net[4], count, net[0][at.D]))


@jit
def _sloped(net: Net, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """Rows of g, from step unit[1] on, by the norm whose unit is saved array unit[0]."""
    i, t = unit
    rstd = kept[1] + (i * net[0][at.L] + t) * WIDTH * net[3]
    call(net[1][_SLOPE], (g, _number(net, place), _saved(net, kept, i, t), rstd, net[4], count, net[0][at.D]))


@jit
def _meet(net: Net, code: int, z: int, h: int, step: int, count: int) -> None:
    call(net[1][_MEET], (code, z, h, step, z, net[4], count, net[0][at.D] * WIDTH))


@jit
def _bent(net: Net, code: int, x: int, slopes: int, count: int) -> None:
    call(net[1][_BEND], (code, x, slopes, net[4], count, net[0][at.D] * WIDTH))


# -- forward -----------------------------------------------------------------------------------------------------------


@jit
def _through(net: Net, b: int, y: int, z: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of z = final(W act(ads(y)) + b), the first of them at y and z; y is spent."""
    p, (lo, count) = net[0], span
    if p[b + at.RAW] >= 0:
        _meet(net, COPY, _saved(net, kept, p[b + at.RAW], lo), y, 1, count)
    if p[b + at.ADS] >= 0:
        s, lever = _saved(net, kept, p[b + at.SCALED], lo), _saved(net, kept, p[b + at.LEVER], lo)
        _mapped(net, p[b + at.ADS], y, s, count)
        _meet(net, ADD, s, _number(net, p[b + at.ADS_BIAS]), 0, count)
        _bent(net, p[b + at.SIGMA], s, lever, count)
        call(net[1][_MEET], (SCALE, y, s, 1, lever, net[4], count, p[at.D] * WIDTH))
    if p[b + at.ACT]:
        _bent(net, p[b + at.ACT], y, _saved(net, kept, p[b + at.BENT], lo), count)
    if p[b + at.MIXED] >= 0:
        _meet(net, COPY, _saved(net, kept, p[b + at.MIXED], lo), y, 1, count)
    if p[b + at.MIX] >= 0:
        _mapped(net, p[b + at.MIX], y, z, count)
        _meet(net, ADD, z, _number(net, p[b + at.MIX_BIAS]), 0, count)
    else:
        _meet(net, COPY, z, y, 1, count)
    if p[b + at.FINAL]:
        _bent(net, p[b + at.FINAL], z, _saved(net, kept, p[b + at.CURVED], lo), count)


@jit
def _block(net: Net, i: int, work: Work, kept: Kept) -> None:
    """h after block i."""
    p, b, (h, y, u, _) = net[0], at.HEADER + i * at.BLOCK, work
    l, place, unit = p[at.L], p[b + at.NORM], _saved(net, kept, p[b + at.UNIT], 0)
    rstd = kept[1] + p[b + at.UNIT] * l * WIDTH * net[3]
    after = place >= 0 and not p[b + at.PRENORM]  # the norm
    source = h
    if place >= 0 and not after:
        _meet(net, COPY, unit, h, 1, l)
        _normed(net, place, unit, u, (rstd, 0), l)
        source = u
    if p[b + at.INPUT] >= 0:
        _meet(net, COPY, _saved(net, kept, p[b + at.INPUT], 0), source, 1, l)
    call(net[1][_CONVOLVE], (_number(net, p[b + at.KERNEL]), p[at.D], l, source, y, net[4], 0))
    z = unit if after else u
    for lo in range(0, l, ROWS):
        count, to = min(ROWS, l - lo), _at(net, z, lo)
        _through(net, b, _at(net, y, lo), to, kept, (lo, count))
        if p[b + at.SKIP]:
            _meet(net, ADD, to, _at(net, h, lo), 1, count)
        if after:
            _normed(net, place, to, _at(net, h, lo), (rstd, lo), count)
        else:
            _meet(net, COPY, _at(net, h, lo), to, 1, count)


@jit
def one_forward(net: Net, outside: tuple[int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (x, out, samples), (h, y, _, scratch) = net[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    call(net[1][_GATHER], (x, samples, l, c, first, y, net[4]))
    place, unit = p[at.START_NORM], p[at.START_UNIT]
    z = h if place < 0 else _saved(net, kept, unit, 0)
    call(net[1][_MAP], (_number(net, p[at.ENTRY]), c, d, y, z, net[4], l))
    _meet(net, ADD, z, _number(net, p[at.ENTRY_BIAS]), 0, l)
    if place >= 0:
        _normed(net, place, z, h, (kept[1] + unit * l * WIDTH * net[3], 0), l)
    for i in range(p[at.LAYERS]):
        _block(net, i, work, kept)
    begin = l - 1 if p[at.POOL] else 0
    if p[at.END_NORM] >= 0:
        z, own = _saved(net, kept, p[at.END_UNIT], begin), _at(net, h, begin)
        _meet(net, COPY, z, own, 1, l - begin)
        rstd = kept[1] + p[at.END_UNIT] * l * WIDTH * net[3]
        _normed(net, p[at.END_NORM], z, own, (rstd, begin), l - begin)
    call(net[1][_POOL], (h, begin, l, out, samples, first, scratch, net[4], d))


# -- backward ----------------------------------------------------------------------------------------------------------


@jit
def _learn_rows(net: Net, place: int, a: int, b: int, kept: Kept, count: int) -> None:
    """The gradient of a row of numbers: rows of a, times those of b where b is not 0, added up."""
    if kept[2]:
        call(net[1][_SUM], (kept[2] + place * net[3], a, b, net[4], count, net[0][at.D] * WIDTH))


@jit
def _learn_norm(net: Net, place: int, g: int, kept: Kept, unit: tuple[int, int], count: int) -> None:
    """Those of gamma and beta."""
    if kept[2]:
        _learn_rows(net, place, g, _saved(net, kept, unit[0], unit[1]), kept, count)
        _learn_rows(net, place + net[0][at.D] * WIDTH, g, 0, kept, count)


@jit
def _learn_map(net: Net, places: tuple[int, int], g: int, x: int, kept: Kept, count: int) -> None:
    """Those of a matrix (d, d) and its bias: rows of the gradient g after it and of what it was given, x."""
    if kept[2]:
        d = net[0][at.D]
        call(net[1][_OUTER], (kept[2] + places[0] * net[3], g, d, x, d, net[4], count))
        _learn_rows(net, places[1], g, 0, kept, count)


@jit
def _unthrough(net: Net, b: int, g: int, gy: int, scratch: int, kept: Kept, span: tuple[int, int]) -> None:
    """Rows of gy from those of the gradient g of z, the first of them at g and gy."""
    p, (lo, count) = net[0], span
    source = g
    if p[b + at.FINAL]:
        _meet(net, COPY, scratch, g, 1, count)
        _meet(net, TIMES, scratch, _saved(net, kept, p[b + at.CURVED], lo), 1, count)
        source = scratch
    if p[b + at.MIX] >= 0:
        if kept[2]:
            given = _saved(net, kept, p[b + at.MIXED], lo)
            _learn_map(net, (p[b + at.MIX_BACK], p[b + at.MIX_BIAS]), source, given, kept, count)
        _mapped(net, p[b + at.MIX_BACK], source, gy, count)
    else:
        _meet(net, COPY, gy, source, 1, count)
    if p[b + at.ACT]:
        _meet(net, TIMES, gy, _saved(net, kept, p[b + at.BENT], lo), 1, count)
    if p[b + at.ADS] >= 0:
        more = _at(net, scratch, ROWS)
        _meet(net, COPY, scratch, gy, 1, count)
        _meet(net, TIMES, scratch, _saved(net, kept, p[b + at.LEVER], lo), 1, count)
        if kept[2]:
            given = _saved(net, kept, p[b + at.RAW], lo)
            _learn_map(net, (p[b + at.ADS_BACK], p[b + at.ADS_BIAS]), scratch, given, kept, count)
        _mapped(net, p[b + at.ADS_BACK], scratch, more, count)
        _meet(net, TIMES, gy, _saved(net, kept, p[b + at.SCALED], lo), 1, count)
        _meet(net, ADD, gy, more, 1, count)


@jit
def _unblock(net: Net, i: int, work: Work, kept: Kept) -> None:
    """The gradient g of h before block i from that after it."""
    p, b, (g, gy, u, scratch) = net[0], at.HEADER + i * at.BLOCK, work
    l, place, unit = p[at.L], p[b + at.NORM], p[b + at.UNIT]
    before, k = place >= 0 and p[b + at.PRENORM] != 0, _number(net, p[b + at.KERNEL_BACK])
    for lo in range(0, l, ROWS):
        count, own = min(ROWS, l - lo), _at(net, g, lo)
        if place >= 0 and not before:
            _learn_norm(net, place, own, kept, (unit, lo), count)
            _sloped(net, place, own, kept, (unit, lo), count)
        _unthrough(net, b, own, _at(net, gy, lo), scratch, kept, (lo, count))
    if kept[2]:
        given, to = _saved(net, kept, p[b + at.INPUT], 0), kept[2] + p[b + at.KERNEL] * net[3]
        call(net[1][_CORRELATE], (to, PAD, gy, given, net[4], l, p[at.D]))
    if not before:
        call(net[1][_CONVOLVE], (k, p[at.D], l, gy, g, net[4], 2 if p[b + at.SKIP] else 1))
        return
    call(net[1][_CONVOLVE], (k, p[at.D], l, gy, u, net[4], 1))
    _learn_norm(net, place, u, kept, (unit, 0), l)
    _sloped(net, place, u, kept, (unit, 0), l)
    _meet(net, ADD if p[b + at.SKIP] else COPY, g, u, 1, l)


@jit
def one_backward(net: Net, outside: tuple[int, int, int, int], first: int, work: Work, kept: Kept) -> None:
    p, (gx, given, samples, x), (g, gy, u, _) = net[0], outside, work
    l, c, d = p[at.L], p[at.C], p[at.D]
    begin = l - 1 if p[at.POOL] else 0
    call(net[1][_UNPOOL], (g, begin, l, given, samples, first, net[4], d))
    if p[at.END_NORM] >= 0:
        _learn_norm(net, p[at.END_NORM], _at(net, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
        _sloped(net, p[at.END_NORM], _at(net, g, begin), kept, (p[at.END_UNIT], begin), l - begin)
    for i in range(p[at.LAYERS] - 1, -1, -1):
        _unblock(net, i, work, kept)
    if p[at.START_NORM] >= 0:
        _learn_norm(net, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
        _sloped(net, p[at.START_NORM], g, kept, (p[at.START_UNIT], 0), l)
    if kept[2]:
        call(net[1][_GATHER], (x, samples, l, c, first, u, net[4]))
        call(net[1][_OUTER], (kept[2] + p[at.ENTRY_BACK] * net[3], g, d, u, c, net[4], l))
        _learn_rows(net, p[at.ENTRY_BIAS], g, 0, kept, l)
    call(net[1][_MAP], (_number(net, p[at.ENTRY_BACK]), d, c, g, gy, net[4], l))
    call(net[1][_SCATTER], (gx, samples, l, c, first, gy, net[4], 0, l))


# -- as a kernel of a team ---------------------------------------------------------------------------------------------


@jit
def _bytes_kept(net: Net) -> int:
    """By one cohort."""
    p = net[0]
    return (p[at.SAVED] * net[4] + p[at.NORMS] * WIDTH) * p[at.L] * net[3]


@jit
def place_to_keep(net: Net, room: int, i: int) -> tuple[int, int]:
    """Where the i-th of those who keep something has its saved arrays, and its 1 / deviation."""
    p, own = net[0], room + i * _bytes_kept(net)
    return own, own + p[at.SAVED] * p[at.L] * net[4] * net[3]


@jit
def place_to_work(net: Net, room: int, samples: int, begin: int) -> Work:
    """The same for all cohorts of a thread, so that it stays warm; `begin` is the thread's first cohort."""
    l, row = net[0][at.L], net[4] * net[3]
    h = room + (samples + WIDTH - 1) // WIDTH * _bytes_kept(net) + begin * (3 * l + 2 * ROWS) * row
    return h, h + l * row, h + 2 * l * row, h + 3 * l * row


def _walk(w: Any) -> None:
    """The table: back, keep, samples, numbers of a row and bytes of one, addresses of program, leaves and numbers, of x
    and of the features (or their gradients), of the room, of the gradients of the numbers (or 0) and of x itself; the
    sizes of the program and of the numbers."""
    t = carray(w, HEAD + 15)
    begin, end = share(t)
    back, keep, samples, row, size, at_p, at_f, numbers, x, y, room, grads, inside, length, total = t[HEAD:]
    p, f = carray(pointer(at_p, types.int64), (length,)), carray(pointer(at_f, types.int64), (COUNT,))
    net = p, f, numbers, size, row
    work = place_to_work(net, room, samples, begin)
    for i in range(begin, end):
        saved, rstd = place_to_keep(net, room, i if keep else begin)
        kept = saved, rstd, grads + i * total * size if grads else 0
        if back:
            one_backward(net, (x, y, samples, inside), i * WIDTH, work, kept)
        else:
            one_forward(net, (x, y, samples), i * WIDTH, work, kept)


@cache
def _compiled() -> Any:
    return kernel(_walk)


@cache
def leaves(dtype: torch.dtype) -> Tensor:
    """Their addresses."""
    return torch.tensor([make(TYPES[dtype]) for make in _LEAVES])


def memory(plan: Plan, b: int) -> Tensor:
    """Room for what a pass over b samples keeps, and to work in."""
    each = (plan.saved + 3) * plan.l * row_of(plan) + plan.norms * plan.l * WIDTH + 2 * ROWS * row_of(plan)
    return fresh((-(-b // WIDTH) * each,), plan.numbers)


def forward(plan: Plan, x: Tensor, room: Tensor, keep: bool) -> Tensor:
    """Pooled features (b, d) of x (b, l, c); with `keep` the room holds what `backward` needs."""
    out = fresh((x.shape[0], plan.d), x)
    _run(plan, (plain(x), out, room), keep, False)
    return out


def backward(plan: Plan, g: Tensor, room: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The gradient of x (b, l, c) from that of the features (b, d); with x, of the numbers too, in their layout."""
    gx = fresh((g.shape[0], plan.l, plan.c), g)
    if x is None:
        _run(plan, (gx, plain(g), room), True, True)
        return gx, None
    parts = g.new_zeros(-(-g.shape[0] // WIDTH), plan.numbers.numel())  # each cohort's own: their sum has one order
    _run(plan, (gx, plain(g), room, parts, plain(x)), True, True)
    return gx, parts.sum(0)


def _run(plan: Plan, arrays: tuple[Tensor, ...], keep: bool, back: bool) -> None:
    b, numbers = arrays[0].shape[0], plan.numbers
    sources = plan.program.data_ptr(), leaves(numbers.dtype).data_ptr(), numbers.data_ptr()
    sizes = int(back), int(keep), b, row_of(plan), numbers.element_size()
    threads = threads_of(plan, b)
    places = [a.data_ptr() for a in arrays] + [0] * (5 - len(arrays))
    run(_compiled(), (*sizes, *sources, *places, plan.program.numel(), numbers.numel()), -(-b // WIDTH), threads)


def threads_of(plan: Plan, b: int) -> int:
    """How many threads a pass over b samples deserves."""
    return threads_for(b * plan.l * plan.d * plan.layers * WIDTH)


def row_of(plan: Plan) -> int:
    """Numbers from a time step to the next: one vector more, or whole columns would share a few lines of the cache."""
    return max(plan.d, plan.c) * WIDTH + WIDTH
