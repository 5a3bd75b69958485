"""The kernel of `projected_triton`: input product, scan and output product of one sequence, tile by tile.

A tile has SEG segments of T steps. Its product with W_in is spread over lanes by the tensor cores and is rearranged
to one thread per state and segment, with all T steps in its registers, so that the scan needs no exchange:

    1. every segment from zero, for its last state e            2. the state that enters each: m' = lam^T m + e
    3. every segment again, from its entering state       then the product with W_out

Two tricks steer the compiler. A scan along an axis of one step is a barrier for the layout of the product, so that
the following operations keep T in registers. And time is reversed by `tl.flip`, which in registers is a renaming,
where a scan with `reverse` would exchange every number between lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.ops.modes.triton_kernels import times


@triton.jit
def _join(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2):  # type: ignore[no-untyped-def]
    """(a₁, b₁)∘(a₂, b₂) = (a₂a₁, a₂b₁ + b₂), b in four multiply-adds; unused a's are free."""
    return ar2 * ar1 - ai2 * ai1, ar2 * ai1 + ai2 * ar1, (br2 + ar2 * br1) - ai2 * bi1, (bi2 + ar2 * bi1) + ai2 * br1


@triton.jit
def _second(a, b, c, d):  # type: ignore[no-untyped-def]
    return c, d


@triton.jit
def _sums(a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
    return a + e, b + f, c + g, d + h


@triton.jit
def _last(x, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """x[T - 1] with axis 0 kept, as a sum of integers: adding the zeros of other steps is then free."""
    end = tl.arange(0, T)[:, None, None] == T - 1
    bits = tl.where(end, x.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, 0)[None, :, :].to(tl.float32, bitcast=True)


@triton.jit
def _split_segments(v, T: tl.constexpr, SEG: tl.constexpr, BP: tl.constexpr):  # type: ignore[no-untyped-def]
    """v (SEG T, 2 BP), interleaved pairs -> real and imaginary parts (T, SEG, BP), T within a thread."""
    vr, vi = tl.split(v.reshape(SEG, T, BP, 2).permute(1, 0, 2, 3))
    vr, vi = tl.associative_scan((vr.reshape(1, T, SEG, BP), vi.reshape(1, T, SEG, BP)), 0, _second)
    return vr.reshape(T, SEG, BP), vi.reshape(T, SEG, BP)


@triton.jit
def _scan_segments(vr, vi, sr, si, lr, li, T: tl.constexpr, SEG: tl.constexpr, BP: tl.constexpr):  # type: ignore[no-untyped-def]
    """All states of every segment that starts from s (1, SEG, BP)."""
    first = tl.arange(0, T)[:, None, None] == 0
    er, ei = times(lr, li, sr, si)
    vr, vi = tl.where(first, vr + er, vr), tl.where(first, vi + ei, vi)
    ar, ai = tl.broadcast_to(lr, (T, SEG, BP)), tl.broadcast_to(li, (T, SEG, BP))
    _, _, hr, hi = tl.associative_scan((ar, ai, vr, vi), 0, _join)
    return hr, hi


@triton.jit
def _states(vr, vi, hr, hi, lr, li, pr, pi, BACK: tl.constexpr, T: tl.constexpr, SEG: tl.constexpr, BP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The states of a tile and the state after it, from h before it; p is lam^T, and SEG is 2."""
    rest = tl.zeros((1, SEG, BP), tl.float32)
    er, ei = _scan_segments(vr, vi, rest, rest, lr, li, T, SEG, BP)
    er, ei = _last(er, T), _last(ei, T)
    first = tl.arange(0, SEG)[None, :, None] == (SEG - 1 if BACK else 0)
    ends = (tl.where(first, er, 0.0), tl.where(first, ei, 0.0), tl.where(first, 0.0, er), tl.where(first, 0.0, ei))
    ar, ai, br, bi = tl.reduce(ends, 1, _sums, keep_dims=True)  # each (1, 1, BP): used by both segments
    mr, mi = times(pr, pi, hr, hi)
    mr += ar
    mi += ai
    yr, yi = _scan_segments(vr, vi, tl.where(first, hr, mr), tl.where(first, hi, mi), lr, li, T, SEG, BP)
    hr, hi = times(pr, pi, mr, mi)
    return yr, yi, hr + br, hi + bi


@triton.jit
def _tile(X, at, live, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(X + at) if WHOLE else tl.load(X + at, mask=live, other=0.0)


@triton.jit
def projected_kernel(  # type: ignore[no-untyped-def]
    X, x_d, x_b, x_l, Y, y_d, y_b, y_l, LAM, W_IN, in_s, in_d, W_OUT, out_d, out_s, KEPT, H, PARTS, BESIDE, l, d, p,
    BACK: tl.constexpr, WRITE: tl.constexpr, KEEP: tl.constexpr, LEARN: tl.constexpr, WHOLE: tl.constexpr,
    UNIT: tl.constexpr, AHEAD: tl.constexpr,
    BD: tl.constexpr, BP: tl.constexpr, SEG: tl.constexpr, T: tl.constexpr, LOG_T: tl.constexpr,
):  # fmt: skip
    """One sequence: Y = W_OUT scan(lam, W_IN X) if WRITE, plus BESIDE, laid out like Y, if given; the states
    into KEPT (b, l, 2p) if KEEP.

    BACK: from the last step to the first with conjugate multipliers. LEARN: the states are γ and H (b, l, 2p) those of
    the forward pass; PARTS (b, 2, p) receives this sequence's sum of γ_t ‾h_{t-1}. WHOLE: no remainders in d and l.
    UNIT: l and the strides of channels and sequences are passed divided by it, so the compiler knows them as multiples.
    AHEAD: the next tile of X is prefetched to registers.
    """
    x_d, x_b, y_d, y_b, l = UNIT * x_d, UNIT * x_b, UNIT * y_d, UNIT * y_b, UNIT * l
    low = X.dtype.element_ty
    ch, q = tl.arange(0, BD), tl.arange(0, 2 * BP)
    row = tl.program_id(0).to(tl.int64)
    wanted, given = ch < d, q < 2 * p
    w_in = tl.load(W_IN + q[None, :] * in_s + ch[:, None] * in_d, mask=given[None, :] & wanted[:, None], other=0.0)
    if WRITE:
        place = W_OUT + ch[:, None] * out_d + q[None, :] * out_s
        w_out = tl.load(place, mask=wanted[:, None] & given[None, :], other=0.0)
    j = tl.arange(0, SEG * BP) % BP
    lr = tl.load(LAM + 2 * j, mask=j < p, other=0.0).to(tl.float32).reshape(1, SEG, BP)
    li = tl.load(LAM + 2 * j + 1, mask=j < p, other=0.0).to(tl.float32).reshape(1, SEG, BP)
    if BACK:
        li = -li
    pr, pi = lr, li
    for _ in tl.static_range(LOG_T):
        pr, pi = times(pr, pi, pr, pi)
    hr, hi = tl.zeros((1, SEG, BP), tl.float32), tl.zeros((1, SEG, BP), tl.float32)
    if LEARN:
        total_r, total_i = tl.zeros((1, SEG, BP), tl.float32), tl.zeros((1, SEG, BP), tl.float32)
    i = tl.arange(0, SEG * T)
    tiles = tl.cdiv(l, SEG * T)
    X += row * x_b
    Y += row * y_b
    if BESIDE is not None:
        BESIDE += row * y_b
    at_x = ch.to(tl.int64)[None, :] * x_d
    at_y = ch.to(tl.int64)[:, None] * y_d
    if AHEAD:
        t = (tiles - 1 if BACK else 0) * SEG * T + i
        ahead = _tile(X, at_x + (t * x_l)[:, None], (t < l)[:, None] & wanted[None, :], WHOLE)
    for k in tl.range(0, tiles, num_stages=1):
        t = (tiles - 1 - k if BACK else k) * SEG * T + i
        if AHEAD:
            x = ahead
            n = t - SEG * T if BACK else t + SEG * T
            ahead = _tile(X, at_x + (n * x_l)[:, None], ((n >= 0) & (n < l))[:, None] & wanted[None, :], False)
        else:
            x = _tile(X, at_x + (t * x_l)[:, None], (t < l)[:, None] & wanted[None, :], WHOLE)
        vr, vi = _split_segments(tl.dot(x, w_in, input_precision="ieee"), T, SEG, BP)
        if BACK:
            vr, vi = tl.flip(vr, 0), tl.flip(vi, 0)
        yr, yi, hr, hi = _states(vr, vi, hr, hi, lr, li, pr, pi, BACK, T, SEG, BP)
        if BACK:
            yr, yi = tl.flip(yr, 0), tl.flip(yi, 0)
        if LEARN:
            seen = ((t > 0) & (t < l))[:, None] & given[None, :]
            before = tl.load(H + row * l * 2 * p + (t - 1)[:, None] * 2 * p + q[None, :], mask=seen, other=0.0)
            sr, si = _split_segments(before.to(tl.float32), T, SEG, BP)
            total_r += tl.sum(yr * sr + yi * si, 0)[None, :, :]
            total_i += tl.sum(yi * sr - yr * si, 0)[None, :, :]
        h = tl.join(yr.to(low), yi.to(low)).permute(1, 0, 2, 3).reshape(SEG * T, 2 * BP)
        if KEEP:
            here = row * l * 2 * p + t[:, None] * 2 * p + q[None, :]
            tl.store(KEPT + here, h, mask=(t < l)[:, None] & given[None, :])
        if WRITE:
            y = tl.dot(w_out, tl.trans(h), input_precision="ieee")
            at, live = at_y + (t * y_l)[None, :], wanted[:, None] & (t < l)[None, :]
            if BESIDE is not None:
                y += _tile(BESIDE, at, live, WHOLE).to(tl.float32)
            if WHOLE:
                tl.store(Y + at, y.to(low))
            else:
                tl.store(Y + at, y.to(low), mask=live)
    if LEARN:
        c = tl.arange(0, BP)
        tl.store(PARTS + row * 2 * p + c, tl.sum(tl.sum(total_r, 1), 0), mask=c < p)
        tl.store(PARTS + row * 2 * p + p + c, tl.sum(tl.sum(total_i, 1), 0), mask=c < p)
