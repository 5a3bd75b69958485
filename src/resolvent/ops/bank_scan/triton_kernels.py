"""The kernels of `bank_scan`: transposing sequences, carrying states from block to block, and the adjoints.

A row is one block of one sequence: `row = (channel * b + sequence) * m + block`. Sequences are aligned at their
ends, so that the last block is full and the state after it is the sequence's own: step t of a sequence of `length`
steps is at position t + shift, shift = m T - length. Positions before it are zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.runtime.launch import quick_jit


@triton.jit
def _place(LENGTHS, i, k, j, l, m, T):  # type: ignore[no-untyped-def]
    """The step of sequence i at position j of its block k, negative if none; and the sequence's length."""
    length = l if LENGTHS is None else tl.load(LENGTHS + i).to(tl.int32)
    return k * T + j - (m * T - length), length


@quick_jit
def lay_in_kernel(  # type: ignore[no-untyped-def]
    X, OUT, LENGTHS, sb, sl, sd, b, l, d, m, width, T: tl.constexpr, BC: tl.constexpr
):
    """X (b, l, d) of any strides to the first T columns of OUT (d, b m, width)."""
    i, k = (tl.program_id(0) // m).to(tl.int64), tl.program_id(0) % m
    c, j = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, T)
    t, _ = _place(LENGTHS, i, k, j, l, m, T)
    there = (t >= 0)[:, None] & (c < d)[None, :]
    x = tl.load(X + i * sb + t.to(tl.int64)[:, None] * sl + c.to(tl.int64)[None, :] * sd, mask=there, other=0.0)
    row = (c.to(tl.int64) * b + i) * m + k
    tl.store(OUT + row[:, None] * width + j[None, :], tl.trans(x).to(OUT.dtype.element_ty), mask=(c < d)[:, None])


@quick_jit
def lay_out_kernel(  # type: ignore[no-untyped-def]
    Y, OUT, LENGTHS, b, l, d, m, T: tl.constexpr, BC: tl.constexpr
):
    """Y (d, b m, T) to OUT (b, l, d); zeros beyond a sequence's length."""
    i, k = (tl.program_id(0) // m).to(tl.int64), tl.program_id(0) % m
    c, j = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, T)
    t, length = _place(LENGTHS, i, k, j, l, m, T)
    row = (c.to(tl.int64) * b + i) * m + k
    y = tl.trans(tl.load(Y + row[:, None] * T + j[None, :], mask=(c < d)[:, None], other=0.0))
    there = (t >= 0)[:, None] & (c < d)[None, :]
    tl.store(OUT + (i * l + t)[:, None] * d + c[None, :], y.to(OUT.dtype.element_ty), mask=there)
    if LENGTHS is not None:  # the number of padding steps equals that of empty positions before the first step
        after = length + k * T + j
        empty = ((k * T + j < m * T - length) & (after < l))[:, None] & (c < d)[None, :]
        tl.store(OUT + (i * l + after)[:, None] * d + c[None, :], tl.zeros_like(y).to(OUT.dtype.element_ty), mask=empty)


@triton.jit
def _load(P, at, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers `at` (LANES,) of P in float32, real and imaginary part: a pair is one memory word."""
    if PAIR:
        both = tl.load(P + 2 * at[:, None] + tl.arange(0, 2)[None, :], mask=live[:, None], other=0.0)
        re, im = tl.split(both.to(tl.float32))
    else:
        re = tl.load(P + at, mask=live, other=0.0).to(tl.float32)
        im = re * 0.0
    return re, im


@triton.jit
def _store(P, at, re, im, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR:
        place = P + 2 * at[:, None] + tl.arange(0, 2)[None, :]
        tl.store(place, tl.join(re, im).to(P.dtype.element_ty), mask=live[:, None])
    else:
        tl.store(P + at, re.to(P.dtype.element_ty), mask=live)


@triton.jit
def _lanes(b, d, n, BN: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row, state index and channel of each thread, its offset in (b, d, n), and whether it exists."""
    lane = tl.arange(0, LANES)
    row, j = tl.program_id(0).to(tl.int64) * (LANES // BN) + lane // BN, lane % BN
    c, i = row // b, row % b
    return row, j, c, (i * d + c) * n + j, (j < n) & (row < b * d)


@triton.jit
def _advance(ROWS, row, k, j, m, width, ar, ai, hr, hi, zr, zi, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store h in block k of ROWS, with rows of `width` state numbers, and return a h + z."""
    there = live & (k >= 0) & (k < m)
    _store(ROWS, (row * m + k) * width + j, hr, hi, there, PAIR)
    return tl.where(there, ar * hr - ai * hi + zr, hr), tl.where(there, ar * hi + ai * hr + zi, hi)


@quick_jit
def carry_kernel(  # type: ignore[no-untyped-def]
    A, Z, H0, ROWS, END, b, d, m, n, width, PAIR: tl.constexpr, BN: tl.constexpr, LANES: tl.constexpr
):
    """h_{k+1} = a h_k + z_k along the blocks of one sequence of one channel, one state number per thread.

    Z (d, b m, s); the states before each block go to ROWS (d, b m, width), starting at its first column; the last
    one to END (b, d, s); H0 (b, d, s) or None. Loads run four blocks ahead.
    """
    row, j, c, outer, live = _lanes(b, d, n, BN, LANES)
    ar, ai = _load(A, c * n + j, live, PAIR)
    hr, hi = ar * 0.0, ar * 0.0
    if H0 is not None:
        hr, hi = _load(H0, outer, live, PAIR)
    for k in range(0, m, 4):
        at = (row * m + k) * n + j
        r0, i0 = _load(Z, at, live, PAIR)
        r1, i1 = _load(Z, at + n, live & (k + 1 < m), PAIR)
        r2, i2 = _load(Z, at + 2 * n, live & (k + 2 < m), PAIR)
        r3, i3 = _load(Z, at + 3 * n, live & (k + 3 < m), PAIR)
        hr, hi = _advance(ROWS, row, k, j, m, width, ar, ai, hr, hi, r0, i0, live, PAIR)
        hr, hi = _advance(ROWS, row, k + 1, j, m, width, ar, ai, hr, hi, r1, i1, live, PAIR)
        hr, hi = _advance(ROWS, row, k + 2, j, m, width, ar, ai, hr, hi, r2, i2, live, PAIR)
        hr, hi = _advance(ROWS, row, k + 3, j, m, width, ar, ai, hr, hi, r3, i3, live, PAIR)
    _store(END, outer, hr, hi, live, PAIR)


@triton.jit
def _read_back(G, ROWS, row, k, j, m, n, width, live, LEARN: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """∂h of block k, and with LEARN h; zero before the first block."""
    there = live & (k >= 0)
    gr, gi = _load(G, (row * m + k) * n + j, there, PAIR)
    hr, hi = gr, gi
    if LEARN:
        hr, hi = _load(ROWS, (row * m + k) * width + j, there, PAIR)
    return gr, gi, hr, hi


@quick_jit
def carry_back_kernel(  # type: ignore[no-untyped-def]
    A, G, G_END, ROWS, G_ROWS, G_H0, PARTS, b, d, m, n, width,
    PAIR: tl.constexpr, BN: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """γ_k = ‾a γ_{k+1} + ∂h_k from the last block to the first; γ_{k+1} is the gradient of z_k.

    G (d, b m, s) are the gradients of the states before each block, G_END (b, d, s) or None that of the last; γ goes to
    G_ROWS (d, b m, width), γ_0 to G_H0 (b, d, s), sums for ∂a, sum_k γ_{k+1} ‾h_k, to PARTS (d, b, s) where ROWS has h.
    """
    LEARN: tl.constexpr = PARTS is not None
    row, j, c, outer, live = _lanes(b, d, n, BN, LANES)
    ar, ai = _load(A, c * n + j, live, PAIR)
    ai = -ai
    cr, ci, sr, si = ar * 0.0, ar * 0.0, ar * 0.0, ar * 0.0
    if G_END is not None:
        cr, ci = _load(G_END, outer, live, PAIR)
    for step in range(0, m, 2):
        k = m - 1 - step
        gr, gi, hr, hi = _read_back(G, ROWS, row, k, j, m, n, width, live, LEARN, PAIR)
        er, ei, fr, fi = _read_back(G, ROWS, row, k - 1, j, m, n, width, live, LEARN, PAIR)
        if LEARN:
            sr, si = sr + cr * hr + ci * hi, si + ci * hr - cr * hi
        cr, ci = _advance(G_ROWS, row, k, j, m, width, ar, ai, cr, ci, gr, gi, live, PAIR)
        if LEARN:
            sr, si = sr + cr * fr + ci * fi, si + ci * fr - cr * fi
        cr, ci = _advance(G_ROWS, row, k - 1, j, m, width, ar, ai, cr, ci, er, ei, live, PAIR)
    if G_H0 is not None:
        _store(G_H0, outer, cr, ci, live, PAIR)
    if LEARN:
        _store(PARTS, row * n + j, sr, si, live, PAIR)


@quick_jit
def dense_carry_kernel(  # type: ignore[no-untyped-def]
    P, Z, H0, ROWS, END, b, d, m, s, width,
    BACK: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """h_{k+1} = h_k P + z_k for BB sequences of one channel, P (d, s, s); with BACK from the last block, by P'.

    Z (d, b m, s); the state before each block goes to ROWS (d, b m, width), the last one to END (b, d, s), if any.
    """
    c, i, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * BB + tl.arange(0, BB), tl.arange(0, BS)
    square = (j < s)[:, None] & (j < s)[None, :]
    if BACK:
        matrix = tl.load(P + c * s * s + j[None, :] * s + j[:, None], mask=square, other=0.0)
    else:
        matrix = tl.load(P + c * s * s + j[:, None] * s + j[None, :], mask=square, other=0.0)
    live = (i < b)[:, None] & (j < s)[None, :]
    outer = (i.to(tl.int64) * d + c)[:, None] * s + j[None, :]
    h = tl.zeros((BB, BS), tl.float32)
    if H0 is not None:
        h = tl.load(H0 + outer, mask=live, other=0.0)
    for step in range(m):
        k = m - 1 - step if BACK else step
        row = ((c * b + i) * m + k)[:, None]
        z = tl.load(Z + row * s + j[None, :], mask=live, other=0.0).to(tl.float32)
        tl.store(ROWS + row * width + j[None, :], h.to(ROWS.dtype.element_ty), mask=live)
        h = tl.dot(h, matrix, z, input_precision=PRECISION)
    if END is not None:
        tl.store(END + outer, h, mask=live)
