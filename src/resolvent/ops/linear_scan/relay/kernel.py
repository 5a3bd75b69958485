"""The linear scan in one launch and one pass over memory, for too few rows to fill the device.

A program holds one chunk of steps of some channels in registers: it joins them from a zero state, reports the result
(`reports`), and runs through them again from the entering state. A thread has STEPS consecutive steps of its
channels; axis 0 of a tile are adjacent threads in time. Words are as in `triton_kernels`.
"""

import triton
import triton.language as tl

from resolvent.ops.linear_scan.relay.reports import (
    COUNTER,
    carry_complex,
    carry_real,
    enter_chunk,
    join_reports_complex,
    pick,
    raise_power,
    take_ticket,
    times_real,
)
from resolvent.ops.linear_scan.triton_kernels import join_complex, join_real, load_words, open_words, store_words, times
from resolvent.runtime.launch import quick_jit


@triton.jit
def _load(at: tl.tensor, mask: tl.tensor, EVEN: tl.constexpr) -> tl.tensor:
    return open_words(tl.load(at)) if EVEN else load_words(at, mask)


@triton.jit
def _join_excluding(a1, b1, s1, e1, a2, b2, s2, e2):  # type: ignore[no-untyped-def]
    """Reports a, b in sequence; s and e the same without the last one, which for a single one is (1, -0)."""
    return times_real(a2, a1), carry_real(a2, b1, b2), times_real(s2, a1), carry_real(s2, b1, e2)


@triton.jit
def _join_excluding_complex(ar, ai, xr, xi, sr, si, er, ei, br, bi, yr, yi, tr, ti, fr, fi):  # type: ignore[no-untyped-def]
    pr, pi, zr, zi = join_reports_complex(ar, ai, xr, xi, br, bi, yr, yi)
    qr, qi, gr, gi = join_reports_complex(ar, ai, xr, xi, tr, ti, fr, fi)
    return pr, pi, zr, zi, qr, qi, gr, gi


@triton.jit
def _join_steps(ar, ai, br, bi, COMPLEX: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products and states from zero along axis 1."""
    if COMPLEX:
        qr, qi, yr, yi = tl.associative_scan((ar, ai, br, bi), 1, join_complex)
    else:
        qr, yr = tl.associative_scan((ar, br), 1, join_real)
        qi, yi = qr, yr
        if PAIRS:
            qi, yi = tl.associative_scan((ai, bi), 1, join_real)
    return qr, qi, yr, yi


@triton.jit
def _join_before(qr, qi, zr, zi, COMPLEX: tl.constexpr, PAIRS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Product and state of adjacent threads, (SIDE, 1, BN), including and excluding each."""
    one, none = tl.full(qr.shape, 1.0, tl.float32), tl.full(qr.shape, -0.0, tl.float32)
    if COMPLEX:
        zero = tl.zeros(qr.shape, tl.float32)
        qr, qi, zr, zi, sr, si, er, ei = tl.associative_scan(
            (qr, qi, zr, zi, one, zero, none, none), 0, _join_excluding_complex
        )
    else:
        qr, zr, sr, er = tl.associative_scan((qr, zr, one, none), 0, _join_excluding)
        if PAIRS:
            qi, zi, si, ei = tl.associative_scan((qi, zi, one, none), 0, _join_excluding)
        else:
            qi, zi, si, ei = qr, zr, sr, er
    return qr, qi, zr, zi, sr, si, er, ei


@triton.jit
def _carry(ar, ai, hr, hi, br, bi, COMPLEX: tl.constexpr):  # type: ignore[no-untyped-def]
    """b + a h for a product a of multipliers."""
    if COMPLEX:
        return carry_complex(ar, ai, hr, hi, br, bi)
    else:
        return carry_real(ar, hr, br), carry_real(ai, hi, bi)


@quick_jit(do_not_specialize=["unit"])
def relay_kernel(  # type: ignore[no-untyped-def]
    a, b, words, out, states, before, ga, marks, l, n, rows, chunks, group, sources, div, unit, DOWN: tl.constexpr,
    CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, PAIRS: tl.constexpr, ADJOINT: tl.constexpr, GRADIENT: tl.constexpr,
    GIVEN: tl.constexpr, PACKED: tl.constexpr, SHARED: tl.constexpr, EVEN: tl.constexpr, CUT: tl.constexpr,
    STEPS: tl.constexpr, SIDE: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    """All states of one chunk of SIDE x STEPS steps; arguments as in `triton_kernels.scan_kernel`, channels last.

    n counts PER words. CUT: there are several chunks, and `words` their reports. EVEN: no remainders. `unit` is
    1, hidden from the compiler: a thread then has only PER words.
    """
    n *= PER
    blocks = tl.cdiv(n, BN)
    pid = take_ticket(words) if CUT else tl.program_id(0)
    j0 = (pid % blocks) * BN
    row = ((pid // blocks) % rows).to(tl.int64)
    c = pid // (blocks * rows)
    j = j0 + tl.arange(0, BN)
    own = j < n
    source = (row // div) % sources
    WAY: tl.constexpr = -1 if DOWN else 1
    NEXT: tl.constexpr = 1 if DOWN else -1  # offset of the adjoint's previous step
    CHUNK: tl.constexpr = STEPS * SIDE
    i = tl.arange(0, STEPS)[None, :, None]
    s = tl.arange(0, SIDE)[:, None, None] * STEPS + i  # (SIDE, STEPS, 1)
    begin, end = i == 0, i == STEPS - 1
    t0 = l - 1 - c * CHUNK if DOWN else c * CHUNK
    t = t0 + WAY * s
    live = (t >= 0) & (t < l)
    valid = live & own[None, None, :]
    at = row * l * n + t0.to(tl.int64) * n + j0 + PER * (unit - 1)
    tile = s * (WAY * n) + tl.arange(0, BN)[None, None, :]  # (SIDE, STEPS, BN)
    if EVEN:
        valid = None  # no mask
    br, bi = _load(b + at + tile, valid, EVEN)
    if CONSTANT:
        cr, ci = load_words(a + source * n + j, own)
        ar, ai = cr[None, None, :] + tl.zeros_like(br), ci[None, None, :] + tl.zeros_like(br)
    else:
        a += (source - row) * l * n + at
        if ADJOINT:
            ahead = (t + NEXT >= 0) & (t + NEXT < l)
            ar, ai = load_words(a + tile + NEXT * n, ahead & own[None, None, :])
        else:
            ar, ai = _load(a + tile, valid, EVEN)
    if ADJOINT and COMPLEX:
        ai = -ai
        if CONSTANT:
            ci = -ci
    if PACKED:
        if not SHARED:
            marks += row * l
        mark = tl.load(marks + t, mask=live, other=0)
        forget = (mark & (2 if ADJOINT else 1)) != 0
        ar = tl.where(forget, 0.0, ar)
        ai = tl.where(forget, 0.0, ai)
    if GIVEN:
        xr, xi = load_words(before + row * n + j, own)
    nr = tl.where(begin, br + 0.0 * ar, br)  # a non-finite multiplier makes the state non-finite
    qr, qi, yr, yi = _join_steps(ar, ai, nr, bi, COMPLEX, PAIRS)
    qr, qi = pick(qr, end, 1)[:, None, :], pick(qi, end, 1)[:, None, :]  # (SIDE, 1, BN)
    yr, yi = pick(yr, end, 1)[:, None, :], pick(yi, end, 1)[:, None, :]
    qr, qi, yr, yi, sr, si, er, ei = _join_before(qr, qi, yr, yi, COMPLEX, PAIRS)
    hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    if GIVEN and not ADJOINT:
        hr, hi = tl.where(c == 0, xr, 0.0), tl.where(c == 0, xi, 0.0)
    if CUT:
        last = (tl.arange(0, SIDE) == SIDE - 1)[:, None, None]
        yr, yi = _carry(qr, qi, hr[None, None, :], hi[None, None, :], yr, yi, COMPLEX)
        wr, wi = hr, hi
        if CONSTANT:
            wr, wi = raise_power(cr, ci, COMPLEX, CHUNK)
        kr, ki = enter_chunk(
            words + COUNTER, row, c, rows, chunks, group, n, j, own, last, qr, qi, yr, yi, wr, wi,
            BN, CONSTANT and not PACKED, COMPLEX, PAIRS,
        )  # fmt: skip
        hr, hi = tl.where(c == 0, hr, kr), tl.where(c == 0, hi, ki)
    er, ei = _carry(sr, si, hr[None, None, :], hi[None, None, :], er, ei, COMPLEX)
    er, ei = times(ar, ai, er, ei, COMPLEX)
    br = tl.where(begin, br + er, br)
    bi = tl.where(begin, bi + ei, bi)
    _, _, yr, yi = _join_steps(ar, ai, br, bi, COMPLEX, PAIRS)
    store_words(out + at + tile, yr, yi, valid)
    if GRADIENT:
        there = (t - NEXT >= 0) & (t - NEXT < l)
        ur, ui = load_words(states + at + tile - NEXT * n, there & own[None, None, :])
        if GIVEN:
            first = t == (0 if DOWN else l - 1)
            ur = tl.where(first, xr[None, None, :], ur)
            ui = tl.where(first, xi[None, None, :], ui)
        gr, gi = times(yr, yi, ur, -ui if COMPLEX else ui, COMPLEX)
        if PACKED:
            gr = tl.where((mark & 1) != 0, 0.0, gr)
            gi = tl.where((mark & 1) != 0, 0.0, gi)
        if CONSTANT:
            if not EVEN:
                gr, gi = tl.where(live, gr, 0.0), tl.where(live, gi, 0.0)
            total_r, total_i = tl.sum(tl.sum(gr, 1), 0), tl.sum(tl.sum(gi, 1), 0)
            store_words(ga + (row * chunks + c) * n + j, total_r, total_i, own)
        else:
            store_words(ga + at + tile, gr, gi, valid)
