"""The linear scan as one Triton kernel: a tile of steps and channels at a time, the state carried from tile to tile.

A program handles a block of channels of one row and a chunk of its steps. Inside a tile the steps are joined by the
associative (a₁, b₁)∘(a₂, b₂) = (a₂a₁, a₂b₁ + b₂); the state that enters is added to the first step's b, so that no
product is longer than a tile. A complex64 number is one 64-bit word, two bfloat16 numbers are one 32-bit
word (PAIRS: two adjacent channels, and n counts words); they are unpacked in registers. Sums are in float32 and
in an order determined by the shapes.

Memory is (rows, l, n), or (rows, n, l) if TIME_LAST. The same kernel runs the adjoint γ_t = ‾a_{t+1}γ_{t+1} + g_t,
and also computes ∂a_t = γ_t ‾h_{t-1}.
"""

import triton
import triton.language as tl

from resolvent.runtime.launch import quick_jit


@triton.jit
def join_real(a1: tl.tensor, b1: tl.tensor, a2: tl.tensor, b2: tl.tensor) -> tl.tensor:
    return a2 * a1, a2 * b1 + b2


@triton.jit
def join_complex(ar, ai, xr, xi, br, bi, yr, yi):  # type: ignore[no-untyped-def]
    """(a, x) then (b, y): (b a, b x + y), of complex numbers."""
    return br * ar - bi * ai, br * ai + bi * ar, br * xr - bi * xi + yr, br * xi + bi * xr + yi


@triton.jit
def load_words(at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    return open_words(tl.load(at, mask=mask, other=0))


@triton.jit
def open_words(x: tl.tensor) -> tl.tensor:
    """The two numbers of a word, float32 of 64 bits or bfloat16 of 32; otherwise the same one twice."""
    if x.dtype == tl.int64:
        first = x.to(tl.int32).to(tl.float32, bitcast=True)
        second = (x >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    elif x.dtype == tl.int32:
        first = (x << 16).to(tl.float32, bitcast=True)
        second = (x & -65536).to(tl.float32, bitcast=True)
    else:
        first = x.to(tl.float32)
        second = first
    return first, second


@triton.jit
def store_words(at: tl.tensor, first: tl.tensor, second: tl.tensor, mask: tl.tensor) -> None:
    if at.dtype.element_ty == tl.int64:
        low = first.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        high = second.to(tl.int32, bitcast=True).to(tl.int64) << 32
        tl.store(at, low | high, mask=mask)
    elif at.dtype.element_ty == tl.int32:
        low = first.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        high = second.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) << 16
        tl.store(at, low | high, mask=mask)
    else:
        tl.store(at, first.to(at.dtype.element_ty), mask=mask)


@triton.jit
def times(ar: tl.tensor, ai: tl.tensor, br: tl.tensor, bi: tl.tensor, COMPLEX: tl.constexpr) -> tl.tensor:
    if COMPLEX:
        re = ar * br - ai * bi
        im = ar * bi + ai * br
    else:
        re = ar * br
        im = ai * bi
    return re, im


@triton.jit
def scan_tile(  # type: ignore[no-untyped-def]
    ar, ai, br, bi, hr, hi, begin, COMPLEX: tl.constexpr, PAIRS: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """Products and states of a tile (BN, steps) with initial state h (BN,) at the column marked by `begin`."""
    er, ei = times(ar, ai, hr[:, None], hi[:, None], COMPLEX)
    br = tl.where(begin, br + er, br)
    bi = tl.where(begin, bi + ei, bi)
    if COMPLEX:
        qr, qi, yr, yi = tl.associative_scan((ar, ai, br, bi), 1, join_complex, reverse=FLIP)
    else:
        qr, yr = tl.associative_scan((ar, br), 1, join_real, reverse=FLIP)
        qi, yi = qr, yr
        if PAIRS:
            qi, yi = tl.associative_scan((ai, bi), 1, join_real, reverse=FLIP)
    return qr, qi, yr, yi


@triton.jit
def at_end(x: tl.tensor, end: tl.tensor) -> tl.tensor:
    """The column of a tile marked by `end`: (BN,)."""
    return tl.sum(tl.where(end, x, 0.0), 1)


@triton.jit
def _load_shifted(at, t, l, time, inside, BY: tl.constexpr):  # type: ignore[no-untyped-def]
    """The tile BY steps later; zero if there is no such step."""
    there = ((t + BY >= 0) & (t + BY < l))[None, :] & inside
    return load_words(at + BY * time, there)


@quick_jit(do_not_specialize=["unit"])
def scan_kernel(  # type: ignore[no-untyped-def]
    a, b, start, out, product, states, before, ga, marks, l, n, chunk, chunks, sources, div, unit, DOWN: tl.constexpr,
    CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, PAIRS: tl.constexpr, TIME_LAST: tl.constexpr, ENDS: tl.constexpr,
    STARTED: tl.constexpr, JOINED: tl.constexpr, ADJOINT: tl.constexpr, GRADIENT: tl.constexpr, GIVEN: tl.constexpr,
    PACKED: tl.constexpr, SHARED: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All states of one chunk, or (ENDS) only its last state and the product of its multipliers.

    DOWN: from the last step to the first. CONSTANT: a does not depend on time. STARTED: `start` (rows, chunks, n) has
    the state after each chunk, and a chunk uses that of the previous one; chunk 0 uses `before` (rows, n) if
    GIVEN. JOINED, if not 0: `start` and `product` are the results of ENDS, and the chunk computes the state that
    enters it itself, from this many previous chunks at a time.
    ADJOINT: conjugate multipliers, each of the next step. GRADIENT: ∂a as well, from `states`, the forward
    pass's h, and `before`, its h0; summed over the chunk where a is CONSTANT, (rows, chunks, n).
    PACKED: the multiplier is 0 at steps with bit 0 set in `marks` (rows, l), and so for the adjoint with bit 1; SHARED:
    all rows have the same.

    `unit` is 1, hidden from the compiler: adjacent threads then hold adjacent channels and each thread
    all the steps of its own, so that steps need no communication between threads.
    """
    blocks = tl.cdiv(n, BN)
    pid = tl.program_id(0)
    j0 = (pid % blocks) * BN
    j = j0 + tl.arange(0, BN)  # (BN,)
    c = (pid // blocks) % chunks
    row = (pid // (blocks * chunks)).to(tl.int64)
    source = (row // div) % sources
    here = (row * chunks + c) * n + j
    if TIME_LAST:
        time, channel = 1, l
    else:
        time, channel = n, unit
    FLIP: tl.constexpr = DOWN and TIME_LAST  # memory order is kept for wide loads; otherwise rows are in scan order
    WAY: tl.constexpr = -1 if DOWN and not TIME_LAST else 1
    NEXT: tl.constexpr = 1 if DOWN else -1  # offset of the adjoint's previous step
    ONE: tl.constexpr = 0.0 if COMPLEX else 1.0  # the second number of 1
    i = tl.arange(0, BT)
    inside = (j < n)[:, None]
    if PACKED:
        own = i
        if TIME_LAST:  # adjacent numbers in the same thread, which then need no exchange
            own = tl.max_contiguous(tl.arange(0, BT), 128 // b.dtype.element_ty.primitive_bitwidth)
        if not SHARED:
            marks += row * l
    tile = (tl.arange(0, BN) * channel)[:, None] + i[None, :] * (WAY * time)  # (BN, BT)
    begin = (i == (BT - 1 if FLIP else 0))[None, :]
    end = (i == (0 if FLIP else BT - 1))[None, :]
    corner = row * l * n + j0.to(tl.int64) * channel
    b += corner
    out += corner
    if CONSTANT:
        cr, ci = load_words(a + source * n + j, j < n)
    else:
        a += corner + (source - row) * l * n
    if GRADIENT:
        states += corner
        if CONSTANT:
            total_r = tl.zeros((BN,), tl.float32)
            total_i = tl.zeros((BN,), tl.float32)
        else:
            ga += corner
    hr = tl.zeros((BN,), tl.float32)
    hi = tl.zeros((BN,), tl.float32)
    if STARTED and JOINED == 0:
        hr, hi = load_words(start + here - n, (j < n) & (c > 0))
    if GIVEN:
        xr, xi = load_words(before + row * n + j, j < n)
        if not ADJOINT:
            hr = tl.where((c == 0) | (JOINED > 0), xr, hr)
            hi = tl.where((c == 0) | (JOINED > 0), xi, hi)
    if STARTED and JOINED > 0:
        m = tl.arange(0, JOINED)
        earlier = row * chunks * n + j0 + (tl.arange(0, BN) * unit)[:, None] + m[None, :] * n  # (BN, JOINED)
        for k in tl.range(0, tl.cdiv(c, JOINED), num_stages=3):
            held = (k * JOINED + m < c)[None, :] & inside
            er, ei = load_words(start + k * JOINED * n + earlier, held)
            fr, fi = load_words(product + k * JOINED * n + earlier, held)
            fr = tl.where(held, fr, 1.0)
            fi = tl.where(held, fi, ONE)
            fr, fi, er, ei = scan_tile(fr, fi, er, ei, hr, hi, (m == 0)[None, :], COMPLEX, PAIRS, False)
            hr = at_end(er, (m == JOINED - 1)[None, :])
            if COMPLEX or PAIRS:
                hi = at_end(ei, (m == JOINED - 1)[None, :])
    if ENDS:
        pr = tl.full((BN,), 1.0, tl.float32)
        pi = tl.full((BN,), ONE, tl.float32)
    for k in tl.range(0, tl.cdiv(tl.minimum(chunk, l - c * chunk), BT), num_stages=STAGES):
        if FLIP:
            t0 = l - c * chunk - (k + 1) * BT
        elif DOWN:
            t0 = l - 1 - c * chunk - k * BT
        else:
            t0 = c * chunk + k * BT
        t = t0 + WAY * i
        valid = ((t >= 0) & (t < l))[None, :] & inside
        base = t0.to(tl.int64) * time
        br, bi = load_words(b + base + tile, valid)
        if CONSTANT:
            ar = tl.where(valid, cr[:, None], 1.0)
            ai = tl.where(valid, ci[:, None], ONE)
        elif ADJOINT:
            ar, ai = _load_shifted(a + base + tile, t, l, time, inside, NEXT)
        else:
            ar, ai = load_words(a + base + tile, valid)
            ar = tl.where(valid, ar, 1.0)
            ai = tl.where(valid, ai, ONE)
        if GRADIENT:
            sr, si = _load_shifted(states + base + tile, t, l, time, inside, -NEXT)
            if GIVEN:
                first = (t == (0 if DOWN else l - 1))[None, :]
                sr = tl.where(first, xr[:, None], sr)
                si = tl.where(first, xi[:, None], si)
        if ADJOINT and COMPLEX:
            ai = -ai
        if PACKED:
            mark = tl.load(marks + (t0 + WAY * own)[None, :], mask=((t >= 0) & (t < l))[None, :], other=0)
            forget = (mark & (2 if ADJOINT else 1)) != 0
            ar = tl.where(forget, 0.0, ar)
            ai = tl.where(forget, 0.0, ai)
        qr, qi, yr, yi = scan_tile(ar, ai, br, bi, hr, hi, begin, COMPLEX, PAIRS, FLIP)
        hr = at_end(yr, end)
        if COMPLEX or PAIRS:
            hi = at_end(yi, end)
        if ENDS:
            pr, pi = times(at_end(qr, end), at_end(qi, end), pr, pi, COMPLEX)
        else:
            store_words(out + base + tile, yr, yi, valid)
        if GRADIENT:
            gr, gi = times(yr, yi, sr, -si if COMPLEX else si, COMPLEX)
            if PACKED:
                gr = tl.where((mark & 1) != 0, 0.0, gr)
                gi = tl.where((mark & 1) != 0, 0.0, gi)
            if CONSTANT:
                total_r += tl.sum(tl.where(valid, gr, 0.0), 1)
                total_i += tl.sum(tl.where(valid, gi, 0.0), 1)
            else:
                store_words(ga + base + tile, gr, gi, valid)
    if ENDS:
        store_words(start + here, hr, hi, j < n)
        store_words(product + here, pr, pi, j < n)
    if GRADIENT and CONSTANT:
        store_words(ga + here, total_r, total_i, j < n)
