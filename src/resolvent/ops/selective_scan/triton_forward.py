"""The selective scan's forward pass as one Triton kernel: discretisation, recurrence, read-out, skip and gate.

A program is one warp. It loops over the steps of BD channels of one segment of a sequence, with the states (BD, G, M)
in registers, G threads per channel and M states per thread: each input is read once, each output written once, and
only one state in EVERY leaves the chip, for the backward pass. Many sequences fill the device with one thread per
channel, which then sums over its states by itself; fewer need more threads per channel.

The exponentials are the bottleneck: exp(dt A) is 2^(dt A log₂e) with A scaled once, one multiplication and one ex2.
"""
# Triton's language has no unpacking into tuples, and its `and` does not stop early.
# ruff: noqa: RUF005, SIM102
# mypy: disable-error-code="assignment"

import triton.language as tl

from resolvent.ops.selective_scan.triton_tiles import (
    KEPT,
    LOG2E,
    each_channel,
    fold,
    forgets,
    put,
    rows,
    sigmoid,
    step_sizes,
    tile,
    widen,
)
from resolvent.runtime.launch import quick_jit


@quick_jit(do_not_specialize=["unit"])
def forward_kernel(  # type: ignore[no-untyped-def]
    u, dt, A, B, C, D, z, bias, h0, y, last, product, saved, marks, su, sdt, sB, sC, sz, l, d, n, chunks, segments,
    unit, REVERSE: tl.constexpr, SKIP: tl.constexpr, GATED: tl.constexpr, RAW: tl.constexpr, STARTED: tl.constexpr,
    EVERY: tl.constexpr, QUIET: tl.constexpr, ENDS: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr,
    WORDS: tl.constexpr, CHUNK: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """u, dt, z, y (b, l, d), A (d, n), B, C (b, l, n), D (d,), h0, last (b, segments, d, n).

    saved (b, l / EVERY, d, n): a state per EVERY steps, none if 0. RAW: the step is softplus(dt + bias),
    bias (d,). h0 and last are the states before and after each segment. QUIET: no y. ENDS: only the last state and the
    `product` of the multipliers of each segment but the last. PACKED: `marks`
    (b, chunks CHUNK / T) is a byte per step, in scan order, that says whether the state is reset
    before it. su, ...: the step strides of u, ... EVEN: no remainders in any direction,
    hence no masks. WORDS: B and C are loaded as pairs of bfloat16. STAGES: the number of prefetched tiles. `unit` is 1,
    hidden from the compiler: threads are then assigned along the channels first, as said above.
    """
    blocks = tl.cdiv(d, BD)
    pid = tl.program_id(0)
    j = (pid % blocks) * BD + tl.arange(0, BD)  # (BD,)
    live = segments - 1 if ENDS else segments
    row, segment = (pid // blocks // live).to(tl.int64), pid // blocks % live
    part = row * segments + segment  # global index of the segment
    s = tl.arange(0, G)[:, None] * M + tl.arange(0, M)[None, :]  # (G, M)
    channel = j < d
    both = channel[:, None, None] & (s < n)[None, :, :]
    states = (j * n)[:, None, None] + (s * unit)[None, :, :]  # (BD, G, M)
    inner = (j * n)[:, None, None] + s[None, :, :]
    rate = tl.load(A + states, mask=both, other=0.0).to(tl.float32) * LOG2E
    h = tl.zeros((BD, G, M), tl.float32)
    total = tl.zeros((BD, T), tl.float32)
    if STARTED:
        h = tl.load(h0 + part * d * n + states, mask=both, other=0.0).to(tl.float32)
    skip, shift = each_channel(D, j, channel, SKIP), each_channel(bias, j, channel, RAW)
    u += row * l * su
    dt += row * l * sdt
    z += row * l * sz
    y += row * l * d
    B += row * l * sB
    C += row * l * sC
    k = tl.arange(0, G * M)
    if WORDS:
        B, C = B.to(tl.pointer_type(tl.int32), bitcast=True), C.to(tl.pointer_type(tl.int32), bitcast=True)
        sB, sC = sB // 2, sC // 2
        k = tl.arange(0, G * M // 2)
    length = tl.cdiv(chunks, segments) * CHUNK
    if PACKED:
        marks += row * chunks * (CHUNK // T)
        seen = tl.zeros((), marks.dtype.element_ty)
    for i in tl.range(segment * length, tl.minimum(segment * length + length, l), T, num_stages=STAGES):
        if EVERY == CHUNK:
            if i % CHUNK == 0:
                tl.store(saved + (row * chunks + i // CHUNK) * n * d + inner, h, mask=both)
        x = tile(u, su, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
        size, _ = step_sizes(dt, sdt, shift, i, l, j, channel, T, REVERSE, EVEN, RAW, G > 1)
        Bs = rows(widen(tile(B, sB, i, l, k, k < n, T, REVERSE, EVEN)))
        if not QUIET:
            Cs = rows(widen(tile(C, sC, i, l, k, k < n, T, REVERSE, EVEN)))
        if GATED:
            gate = tile(z, sz, i, l, j, channel, T, REVERSE, EVEN).to(tl.float32)
        if PACKED:
            mark = tl.load(marks + i // T)
            seen |= mark
        sizes, drives, reads = rows(size), rows(size * x), ()
        for q in tl.static_range(T):
            if EVERY > 0 and EVERY < CHUNK:
                if q % EVERY == 0:
                    at = saved + (row * tl.cdiv(l, EVERY) + (i + q) // EVERY) * n * d + inner
                    tl.store(at, h.to(saved.dtype.element_ty), mask=both & (i + q < l))
            if PACKED:
                h = tl.where(forgets(mark, q), 0.0, h)
            drive = drives[q][:, None, None] * tl.reshape(Bs[q], (1, G, M))
            h = tl.exp2(sizes[q][:, None, None] * rate) * h + drive
            if not QUIET:
                reads = reads + (tl.sum(h * tl.reshape(Cs[q], (1, G, M)), 2),)
        if ENDS:
            total += size
        if not QUIET:
            v = fold(reads)  # (BD, T)
            if SKIP:
                v += skip * x
            if GATED:
                v *= gate * sigmoid(gate)
            put(y, d, v, i, l, d, j, T, REVERSE, EVEN, KEPT)
    if ENDS or not QUIET:
        tl.store(last + part * d * n + states, h, mask=both)
    if ENDS:
        whole = tl.sum(total, 1)[:, None, None]
        if PACKED:
            tl.store(product + part * d * n + states, tl.where(seen == 0, tl.exp2(whole * rate), 0.0), mask=both)
        else:
            tl.store(product + part * d * n + states, tl.exp2(whole * rate), mask=both)
