"""`pgd_loop` on the CPU, compiled by numba: a cohort takes all of its steps before the next one starts.

Between two steps of an attack no sample waits for another. What a pass keeps for its way back is therefore needed once
for each thread and not for each cohort, and stays warm; threads meet once, at the end, and whoever is done with a
cohort takes the next. A sample's steps depend on its own numbers alone, so that neither changes a bit of the result.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from numba import carray, types
from torch import Tensor

from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.interpreter_numba import one_backward, one_forward
from resolvent.lowering.cpu.lanes_layout import Plan
from resolvent.lowering.cpu.lanes_numba import place_to_keep, place_to_work, room_of, row_of, stamp_walk, work_of
from resolvent.lowering.cpu.ops_numba import COUNT, TYPES, leaves
from resolvent.runtime.cfunc_numba import call, leaf
from resolvent.runtime.memory import fresh
from resolvent.runtime.team import HEAD, kernel, pointer, run, share, taken, threads_for
from resolvent.runtime.vectors_numba import WIDTH


def _read(dtype: Any) -> int:
    """Features (b, d) of a cohort become their gradients, W'(softmax(W f + bias) - target).

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
            bad, total = (top - low) - (top - low), dtype(0)  # of what is not finite that is NaN
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
    """x (b, n) moves by size sign(g) within box (2, b, n); where g has a flaw, or the sample has one, by nothing."""

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
    """The kernel, of these sources.

    Its table: samples, classes, steps, numbers of a row and bytes of one, size of the program, addresses of program,
    leaves, own leaves and numbers, of the count of cohorts taken, of x, its gradient, the features, the room, the map,
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
        own, net = carray(pointer(at_own, types.int64), (2,)), (p, f, numbers, size, row)
        work, kept = place_to_work(net, room, threads * WIDTH, begin), place_to_keep(net, room, begin, 0)
        first, d, n = taken(count) * WIDTH, p[at.D], p[at.L] * p[at.C]
        while first < samples:
            for _ in range(steps):
                one_forward(net, (x, features, samples), first, work, kept)
                call(own[0], (features, readout, rest, flaws, first, samples, d, k))
                one_backward(net, (g, features, samples, 0), first, work, kept)
                call(own[1], (x, g, box, sizes, flaws, first, samples, n))
            first = taken(count) * WIDTH

    return _pgd_loop


@cache
def _compile() -> Any:
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
    run(_compile(), (*sizes, *map(Tensor.data_ptr, (*sources, *arrays)), threads), threads, threads)
