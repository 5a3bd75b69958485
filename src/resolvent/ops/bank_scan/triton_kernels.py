"""The kernels of `bank_scan`: sequences laid out by channel, states carried from block to block, and back.

A row stands for one block of one sequence: `row = (channel * b + sequence) * m + block`. Sequences are aligned at their
ends, so that the last block is full and the state after it is the sequence's own: step t of a sequence of `length`
steps lies at place t + shift, shift = m T - length. What lies before it is zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.ops.linear_scan.triton_kernels import join_complex
from resolvent.runtime.launch import Quick


@triton.jit
def _place(LENGTHS, i, k, j, l, m, T):  # type: ignore[no-untyped-def]
    """Step of sequence i that lies at place j of its block k; negative where none does. And the sequence's length."""
    length = l if LENGTHS is None else tl.load(LENGTHS + i).to(tl.int32)
    return k * T + j - (m * T - length), length


@Quick
@triton.jit
def lay_in_kernel(  # type: ignore[no-untyped-def]
    X, OUT, LENGTHS, sb, sl, sd, b, l, d, m, width, T: tl.constexpr, BC: tl.constexpr
):
    """X (b, l, d) of any strides to the first T columns of OUT (d, b m, width)."""
    i, k = (tl.program_id(0) // m).to(tl.int64), tl.program_id(0) % m
    c, j = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, T)
    t, _ = _place(LENGTHS, i, k, j, l, m, T)
    there = (t >= 0)[:, None] & (c < d)[None, :]
    x = tl.load(X + i * sb + t.to(tl.int64)[:, None] * sl + c[None, :] * sd, mask=there, other=0.0)
    row = (c.to(tl.int64) * b + i) * m + k
    tl.store(OUT + row[:, None] * width + j[None, :], tl.trans(x).to(OUT.dtype.element_ty), mask=(c < d)[:, None])


@Quick
@triton.jit
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
    if LENGTHS is not None:  # as many steps are padding as places before the first step are empty
        after = length + k * T + j
        empty = ((k * T + j < m * T - length) & (after < l))[:, None] & (c < d)[None, :]
        tl.store(OUT + (i * l + after)[:, None] * d + c[None, :], tl.zeros_like(y).to(OUT.dtype.element_ty), mask=empty)


@triton.jit
def _load(P, at, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR:
        re = tl.load(P + 2 * at, mask=live, other=0.0).to(tl.float32)
        im = tl.load(P + 2 * at + 1, mask=live, other=0.0).to(tl.float32)
    else:
        re = tl.load(P + at, mask=live, other=0.0).to(tl.float32)
        im = re * 0.0
    return re, im


@triton.jit
def _store(P, at, re, im, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR:
        tl.store(P + 2 * at, re.to(P.dtype.element_ty), mask=live)
        tl.store(P + 2 * at + 1, im.to(P.dtype.element_ty), mask=live)
    else:
        tl.store(P + at, re.to(P.dtype.element_ty), mask=live)


@Quick
@triton.jit
def carry_kernel(  # type: ignore[no-untyped-def]
    A, Z, H0, ROWS, END, b, d, m, n, width, PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """h_{k+1} = a h_k + z_k along the blocks of one sequence of one channel.

    Z (d, b m, s); the states before each block go to ROWS (d, b m, width), whose first column is the state's; the last
    one to END (b, d, s); H0 (b, d, s) or None. BM blocks are read at a time and joined on the chip.
    """
    S: tl.constexpr = 2 if PAIR else 1
    row, j, k = tl.program_id(0).to(tl.int64), tl.arange(0, BN), tl.arange(0, BM)
    c, i = row // b, row % b
    live = j < n
    ar, ai = _load(A, c * n + j, live, PAIR)
    hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    if H0 is not None:
        hr, hi = _load(H0, (i * d + c) * n + j, live, PAIR)
    first, last = (k == 0)[:, None], (k == BM - 1)[:, None]
    for begin in range(0, m, BM):
        there = (begin + k < m)[:, None] & live[None, :]
        zr, zi = _load(Z, ((row * m + begin + k)[:, None] * n + j[None, :]), there, PAIR)
        outside = (begin + k >= m)[:, None]
        br, bi = tl.where(outside, 1.0, ar[None, :]), tl.where(outside, 0.0, ai[None, :])
        xr = tl.where(first, zr + br * hr[None, :] - bi * hi[None, :], zr)
        xi = tl.where(first, zi + br * hi[None, :] + bi * hr[None, :], zi)
        _, _, yr, yi = tl.associative_scan((br, bi, xr, xi), 0, join_complex)  # the states after each block
        at = ((row * m + begin + k + 1) * width)[:, None] + j[None, :] * S
        before = (begin + k + 1 < m)[:, None] & live[None, :]
        tl.store(ROWS + ((row * m + begin) * width) + j * S, hr.to(ROWS.dtype.element_ty), mask=live)
        tl.store(ROWS + at, yr.to(ROWS.dtype.element_ty), mask=before & (k < BM - 1)[:, None])
        if PAIR:
            tl.store(ROWS + ((row * m + begin) * width) + j * S + 1, hi.to(ROWS.dtype.element_ty), mask=live)
            tl.store(ROWS + at + 1, yi.to(ROWS.dtype.element_ty), mask=before & (k < BM - 1)[:, None])
        hr, hi = tl.sum(tl.where(last, yr, 0.0), 0), tl.sum(tl.where(last, yi, 0.0), 0)
    _store(END, (i * d + c) * n + j, hr, hi, live, PAIR)


@Quick
@triton.jit
def carry_back_kernel(  # type: ignore[no-untyped-def]
    A, G, G_END, ROWS, G_ROWS, G_H0, PARTS, b, d, m, n, width,
    PAIR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """γ_k = ‾a γ_{k+1} + ∂h_k from the last block to the first; γ_{k+1} is the gradient of what block k adds.

    G (d, b m, s) are the gradients of the states before each block, G_END (b, d, s) or None that of the last; γ goes to
    G_ROWS (d, b m, width), γ_0 to G_H0 (b, d, s), sums for ∂a, sum_k γ_{k+1} ‾h_k, to PARTS (d, b, s) where ROWS has h.
    """
    S: tl.constexpr = 2 if PAIR else 1
    row, j, k = tl.program_id(0).to(tl.int64), tl.arange(0, BN), tl.arange(0, BM)
    c, i = row // b, row % b
    live = j < n
    ar, ai = _load(A, c * n + j, live, PAIR)
    ai = -ai
    cr, ci = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    if G_END is not None:
        cr, ci = _load(G_END, (i * d + c) * n + j, live, PAIR)
    sr, si = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    first, last = (k == 0)[:, None], (k == BM - 1)[:, None]
    tiles = tl.cdiv(m, BM)
    for step in range(tiles):
        begin = m - BM * (step + 1)  # the first tile's may be negative: blocks before the first are outside
        block = begin + BM - 1 - k  # from the last to the first, as the scan runs
        inside = block >= 0
        there = inside[:, None] & live[None, :]
        gr, gi = _load(G, ((row * m + block)[:, None] * n + j[None, :]), there, PAIR)
        br, bi = tl.where(inside[:, None], ar[None, :], 1.0), tl.where(inside[:, None], ai[None, :], 0.0)
        xr = tl.where(first, gr + br * cr[None, :] - bi * ci[None, :], gr)
        xi = tl.where(first, gi + br * ci[None, :] + bi * cr[None, :], gi)
        _, _, yr, yi = tl.associative_scan((br, bi, xr, xi), 0, join_complex)  # γ_block
        top = begin + BM - 1  # γ that entered belongs to it
        entered = (row * m + top) * width + j * S
        tl.store(G_ROWS + entered, cr.to(G_ROWS.dtype.element_ty), mask=live)
        down = ((row * m + block - 1) * width)[:, None] + j[None, :] * S
        handed = (block >= 1)[:, None] & (k < BM - 1)[:, None] & live[None, :]
        tl.store(G_ROWS + down, yr.to(G_ROWS.dtype.element_ty), mask=handed)
        if PAIR:
            tl.store(G_ROWS + entered + 1, ci.to(G_ROWS.dtype.element_ty), mask=live)
            tl.store(G_ROWS + down + 1, yi.to(G_ROWS.dtype.element_ty), mask=handed)
        if PARTS is not None:  # γ_{k+1} ‾h_k
            hr = tl.load(ROWS + down, mask=handed, other=0.0).to(tl.float32)
            er = tl.load(ROWS + entered, mask=live, other=0.0).to(tl.float32)
            hi, ei = hr * 0.0, er * 0.0
            if PAIR:
                hi = tl.load(ROWS + down + 1, mask=handed, other=0.0).to(tl.float32)
                ei = tl.load(ROWS + entered + 1, mask=live, other=0.0).to(tl.float32)
            sr += tl.sum(yr * hr + yi * hi, 0) + cr * er + ci * ei
            si += tl.sum(yi * hr - yr * hi, 0) + ci * er - cr * ei
        cr, ci = tl.sum(tl.where(last, yr, 0.0), 0), tl.sum(tl.where(last, yi, 0.0), 0)
    if G_H0 is not None:
        _store(G_H0, (i * d + c) * n + j, cr, ci, live, PAIR)
    if PARTS is not None:
        _store(PARTS, row * n + j, sr, si, live, PAIR)


@Quick
@triton.jit
def dense_carry_kernel(  # type: ignore[no-untyped-def]
    P, Z, H0, ROWS, END, b, d, m, s, width,
    BACK: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """h_{k+1} = h_k P + z_k for BB sequences of one channel, P (d, s, s); with BACK from the last block, by P'.

    Z (d, b m, s); what enters each block goes to ROWS (d, b m, width), what leaves the last to END (b, d, s), if any.
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
