"""`lanes` on the CPU, compiled by numba: WIDTH samples run through the whole stack before the next ones start.

Layer by layer over a whole batch, every activation leaves the cache before it is reread. Here the activations of
one set of lanes, (l, d, WIDTH) each, stay in a core's own cache from entry to pooling and back (`interpreter_numba`).
Lanes share only read-only data, so the result does not depend on the number of threads, bit for bit.

Samples are independent between the steps of an attack, so there a set of lanes takes all of its steps before the next
one starts. What a pass saves for its backward is then needed once per thread instead of per set, and stays in cache;
threads synchronise once, at the end, and an idle thread takes the next set.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import torch
from numba import carray, types
from torch import Tensor

from resolvent.lowering.cpu import interpreter_numba, ops_numba, recurrence_numba
from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.interpreter_numba import one_backward, one_forward
from resolvent.lowering.cpu.lanes_layout import Plan
from resolvent.lowering.cpu.ops_numba import COUNT, ROWS, TYPES, Kept, Ops, Work, leaves, piece, stamp
from resolvent.runtime.cfunc_numba import call, leaf
from resolvent.runtime.memory import fresh, plain
from resolvent.runtime.team import HEAD, kernel, pointer, run, share, taken, threads_for
from resolvent.runtime.vectors_numba import WIDTH

ROOM = 64 << 20  # bytes that a pass may use if nothing has to be saved


@piece
def _bytes_saved(ops: Ops) -> int:
    """Saved by one set of lanes, in rows of channels."""
    p = ops[0]
    return p[at.SAVED] * p[at.L] * ops[4] * ops[3]


@piece
def _bytes_kept(ops: Ops) -> int:
    """Everything that one set of lanes saves."""
    p = ops[0]
    return _bytes_saved(ops) + (p[at.NORMS] * p[at.L] * WIDTH + p[at.TRACES] * (p[at.L] + 1) * p[at.WIDE]) * ops[3]


@piece
def place_to_keep(ops: Ops, room: int, i: int, grads: int) -> Kept:
    """The addresses where the i-th set of lanes saves its data; `grads`: its gradients of the numbers, or 0."""
    p, own = ops[0], room + i * _bytes_kept(ops)
    rstd = own + _bytes_saved(ops)
    return own, rstd, grads, rstd + p[at.NORMS] * p[at.L] * WIDTH * ops[3]


@piece
def place_to_work(ops: Ops, room: int, samples: int, begin: int) -> Work:
    """The work space shared by all sets of a thread, so that it stays in cache; `begin` is the thread's first set."""
    p, row = ops[0], ops[4] * ops[3]
    own = (3 * p[at.L] + 2 * ROWS) * row + (ROWS + 1) * p[at.WIDE] * ops[3]
    h, all_l = room + (samples + WIDTH - 1) // WIDTH * _bytes_kept(ops) + begin * own, p[at.L] * row
    scratch = h + 3 * all_l
    return h, h + all_l, h + 2 * all_l, scratch, scratch + 2 * ROWS * row


def _walk_of(sources: int) -> Any:
    """The kernel, for these sources.

    Its table: back, keep, samples, numbers of a row and bytes of one, addresses of program, leaves and numbers, of x
    and of the features (or their gradients), of the work space, of the gradients of the numbers (or 0) and of x; the
    sizes of the program and of the numbers.
    """

    def _walk(w: Any) -> None:
        _ = sources
        t = carray(w, HEAD + 15)
        begin, end = share(t)
        back, keep, samples, row, size, at_p, at_f, numbers, x, y, room, grads, inside, length, total = t[HEAD:]
        p, f = carray(pointer(at_p, types.int64), (length,)), carray(pointer(at_f, types.int64), (COUNT,))
        ops = p, f, numbers, size, row
        work = place_to_work(ops, room, samples, begin)
        for i in range(begin, end):
            kept = place_to_keep(ops, room, i if keep else begin, grads + i * total * size if grads else 0)
            if back:
                one_backward(ops, (x, y, samples, inside), i * WIDTH, work, kept)
            else:
                one_forward(ops, (x, y, samples), i * WIDTH, work, kept)

    return _walk


def stamp_walk() -> int:
    """The stamp of a kernel that contains the walk."""
    return stamp(at, ops_numba, recurrence_numba, interpreter_numba, sys.modules[__name__])


@cache
def _compile() -> Any:
    return kernel(_walk_of(stamp_walk()))


def room_of(plan: Plan) -> int:
    """The size, in numbers, of what one set of lanes saves and of its work space."""
    l, wide, row = plan.l, plan.wide, row_of(plan)
    states = plan.traces * (l + 1) * wide + (ROWS + 1) * wide
    return (plan.saved + 3) * l * row + plan.norms * l * WIDTH + 2 * ROWS * row + states


def forward(plan: Plan, x: Tensor) -> Tensor:
    """Pooled features (b, d) of x (b, l, c), saving nothing: a large batch is processed in pieces."""
    b, each = x.shape[0], room_of(plan)
    groups = max(threads_for(work_of(plan, b)), ROOM // (each * plan.numbers.element_size()))
    room, out = fresh((min(-(-b // WIDTH), groups) * each,), plan.numbers), fresh((b, plan.d), x)
    piece = groups * WIDTH
    for own, to in zip(plain(x).split(piece), out.split(piece), strict=True):
        _run(plan, (own, to, room), False, False)
    return out


def forward_kept(plan: Plan, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and the buffer saved for `backward`."""
    b, each = x.shape[0], room_of(plan)
    room, out = fresh((-(-b // WIDTH) * each,), plan.numbers), fresh((b, plan.d), x)
    _run(plan, (plain(x), out, room), True, False)
    return out, room


def backward(plan: Plan, g: Tensor, room: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The gradient of x (b, l, c) from that of the features (b, d); with x, also of the numbers, in their layout."""
    gx = fresh((g.shape[0], plan.l, plan.c), g)
    if x is None:
        _run(plan, (gx, plain(g), room), True, True)
        return gx, None
    parts = g.new_zeros(-(-g.shape[0] // WIDTH), plan.numbers.numel())  # one per set of lanes: summed in a fixed order
    _run(plan, (gx, plain(g), room, parts, plain(x)), True, True)
    return gx, parts.sum(0)


def _run(plan: Plan, arrays: tuple[Tensor, ...], keep: bool, back: bool) -> None:
    b, numbers = arrays[0].shape[0], plan.numbers
    sources = plan.program.data_ptr(), leaves(numbers.dtype).data_ptr(), numbers.data_ptr()
    sizes, work = (int(back), int(keep), b, row_of(plan), numbers.element_size()), work_of(plan, b)
    places = *map(Tensor.data_ptr, arrays), *[0] * (5 - len(arrays))
    settings = *sizes, *sources, *places, plan.program.numel(), numbers.numel()
    run(_compile(), settings, -(-b // WIDTH), threads_for(work))


def work_of(plan: Plan, b: int) -> int:
    """The number of multiply-adds in a pass over b samples."""
    return b * plan.l * plan.d * plan.layers * WIDTH


def row_of(plan: Plan) -> int:
    """The stride between time steps: padded by one vector, or whole columns would share a few cache lines."""
    return max(plan.d, plan.c) * WIDTH + WIDTH


# -- all steps of an attack --------------------------------------------------------------------------------------------


def _read(dtype: Any) -> int:
    """Replace features (b, d) by their gradients, W'(softmax(W f + bias) - target).

    map holds (W' and the bias (d + 1, k), W (k, d)), rest (z (b, k), target (b, k)); flaw (b,) becomes 0 for a sample
    whose logits and loss are finite, else NaN.
    """
    size = dtype.bitwidth // 8

    def body(at_f: int, at_map: int, at_rest: int, at_flaw: int, first: int, b: int, d: int, k: int) -> None:
        f, flaw = carray(pointer(at_f, dtype), (b, d)), carray(pointer(at_flaw, dtype), (b,))
        ahead = carray(pointer(at_map, dtype), (d + 1, k))
        back = carray(pointer(at_map + (d + 1) * k * size, dtype), (k, d))
        rest = carray(pointer(at_rest, dtype), (2, b, k))
        for s in range(first, min(b, first + WIDTH)):
            own, z, target = f[s], rest[0, s], rest[1, s]
            for j in range(k):
                z[j] = ahead[d, j]
            for c in range(d):
                for j in range(k):
                    z[j] += own[c] * ahead[c, j]
            top = low = z[0]
            for j in range(k):
                top, low = max(top, z[j]), min(low, z[j])
            bad, total = (top - low) - (top - low), dtype(0)  # NaN where not finite
            for j in range(k):
                bad += z[j] - z[j]
                z[j] = math.exp(z[j] - top)
                total += z[j]
            flaw[s] = bad
            for c in range(d):
                own[c] = 0
            for j in range(k):
                slope = z[j] / total - target[j]
                for c in range(d):
                    own[c] += slope * back[j, c]

    return leaf(body)


def _step_signs(dtype: Any) -> int:
    """x (b, n) moves by size sign(g) within box (2, b, n); not moving where g or the sample is flawed."""

    def body(at_x: int, at_g: int, at_box: int, at_size: int, at_flaw: int, first: int, b: int, n: int) -> None:
        x, g = carray(pointer(at_x, dtype), (b, n)), carray(pointer(at_g, dtype), (b, n))
        box = carray(pointer(at_box, dtype), (2, b, n))
        size, flaw = carray(pointer(at_size, dtype), (b,)), carray(pointer(at_flaw, dtype), (b,))
        for s in range(first, min(b, first + WIDTH)):
            bad = flaw[s]
            for i in range(n):
                bad += g[s, i] - g[s, i]
            stride = size[s] if bad == 0 else dtype(0)
            for i in range(n):
                to = x[s, i] + (stride if g[s, i] > 0 else (-stride if g[s, i] < 0 else dtype(0)))
                to = box[0, s, i] if to < box[0, s, i] else to
                x[s, i] = box[1, s, i] if to > box[1, s, i] else to

    return leaf(body)


_LEAVES = _read, _step_signs


def _make_loop(sources: int) -> Any:
    """The kernel, for these sources.

    Its table: samples, classes, steps, numbers of a row and bytes of one, size of the program, addresses of program,
    leaves, own leaves and numbers, of the counter of sets taken, of x, its gradient, the features, work space, map,
    the rest of the readout, box, sizes, flaws; the number of threads, each of which is one task.
    """

    def _pgd_loop(w: Any) -> None:
        _ = sources
        t = carray(w, HEAD + 21)
        begin, _ = share(t)
        samples, k, steps, row, size, length, at_p, at_f, at_own, numbers = t[HEAD : HEAD + 10]
        count, x, g, features, room, readout, rest, box, sizes, flaws = t[HEAD + 10 : HEAD + 20]
        threads = t[HEAD + 20]
        p, f = carray(pointer(at_p, types.int64), (length,)), carray(pointer(at_f, types.int64), (COUNT,))
        own, ops = carray(pointer(at_own, types.int64), (2,)), (p, f, numbers, size, row)
        work, kept = place_to_work(ops, room, threads * WIDTH, begin), place_to_keep(ops, room, begin, 0)
        first, d, n = taken(count) * WIDTH, p[at.D], p[at.L] * p[at.C]
        while first < samples:
            for _ in range(steps):
                one_forward(ops, (x, features, samples), first, work, kept)
                call(own[0], (features, readout, rest, flaws, first, samples, d, k))
                one_backward(ops, (g, features, samples, 0), first, work, kept)
                call(own[1], (x, g, box, sizes, flaws, first, samples, n))
            first = taken(count) * WIDTH

    return _pgd_loop


@cache
def _compile_loop() -> Any:
    return kernel(_make_loop(stamp_walk()))


@cache
def _own(dtype: torch.dtype) -> Tensor:
    return torch.tensor([make(TYPES[dtype]) for make in _LEAVES])


def run_loop(x: Tensor, plan: Plan, readout: Tensor, rest: Tensor, box: Tensor, size: Tensor, steps: int) -> None:
    """x (b, l, c), contiguous, moves in place; the arrays are those of `_read` and `_step_signs`."""
    b, numbers, each, work = x.shape[0], plan.numbers, room_of(plan), work_of(plan, x.shape[0])
    sizes = b, rest.shape[-1], steps, row_of(plan), numbers.element_size(), plan.program.numel()
    threads = min(threads_for(work), -(-b // WIDTH))
    g, features, flaws = fresh(tuple(x.shape), x), fresh((b, plan.d), x), fresh((b,), x)
    arrays = x, g, features, fresh((threads * each,), numbers), readout, rest, box, size, flaws
    sources = plan.program, leaves(x.dtype), _own(x.dtype), numbers, torch.zeros(1, dtype=torch.int64)
    run(_compile_loop(), (*sizes, *map(Tensor.data_ptr, (*sources, *arrays)), threads), threads, threads)
