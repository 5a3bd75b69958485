"""The gated scan in Triton: gates, recurrence and, in the other direction, every gradient, each in one pass.

A program is one warp; it loops over a chunk of steps of BN channels of one row in tiles (BT, BN), which are
prefetched. A thread handles PER adjacent channels, loaded as one word of four bytes or more, and all the steps
of a tile, so that steps need no communication between threads. Sums are in float32 and in an order determined by the
shapes. The gates are recomputed in the backward: saving them would take more bytes than p, q and x.

With u = log a both multipliers follow without cancellation: e = expm1(u), a = 1 + e, 1 - a² = -e (2 + e).
"""
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl

from resolvent.ops.linear_scan.triton_kernels import join_real
from resolvent.ops.selective_scan.triton_tiles import LOG2E, sigmoid
from resolvent.runtime.launch import quick_jit

NEAR = tl.constexpr(-0.5)  # above it expm1 is a polynomial (relative error 6e-9), below it 2^x - 1
P2, P3 = tl.constexpr(0.4999999896221284), tl.constexpr(0.16666562755989667)
P4, P5, P6 = tl.constexpr(0.04164992996238474), tl.constexpr(0.008238221347153239), tl.constexpr(0.0011642870333109319)
LEAST = tl.constexpr(1e-37)  # smallest argument of a root: a normal number
STEEPEST = tl.constexpr(2000.0)  # twice the bound on the derivative of the root
# document starts: none, at the scan's first step, anywhere
NONE, FIRST, ANY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _decay(u: tl.tensor) -> tl.tensor:
    """a = exp(u) and 1 - a² for u <= 0, both to a few units in the last place."""
    near = u > NEAR
    e = u + u * u * (P2 + u * (P3 + u * (P4 + u * (P5 + u * P6))))
    far = tl.exp2(LOG2E * u)
    e = tl.where(near, e, far - 1.0)
    return tl.where(near, 1.0 + e, far), e * (-2.0 - e)


@triton.jit
def _load(at: tl.tensor, mask: tl.tensor, EVEN: tl.constexpr) -> tl.tensor:
    """A tile (BT, BN) in float32; zeros outside."""
    x = tl.load(at) if EVEN else tl.load(at, mask=mask, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _store(at: tl.tensor, x: tl.tensor, mask: tl.tensor, EVEN: tl.constexpr) -> None:
    if EVEN:
        tl.store(at, x.to(at.dtype.element_ty))
    else:
        tl.store(at, x.to(at.dtype.element_ty), mask=mask)


@triton.jit
def _at_end(x: tl.tensor, end: tl.tensor) -> tl.tensor:
    """The step of a tile that `end` marks, (BN,); added as integers, so that zeros are free."""
    bits = tl.where(end, x.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, 0).to(tl.float32, bitcast=True)


@triton.jit
def _flags(at: tl.tensor, mask: tl.tensor, EVEN: tl.constexpr) -> tl.tensor:
    """Which steps of a tile `starts` marks: (BT, 1)."""
    found = tl.load(at) if EVEN else tl.load(at, mask=mask, other=0)
    return (found != 0)[:, None]


@triton.jit
def _gates(p: tl.tensor, rate: tl.tensor, opened: tl.tensor, STARTS: tl.constexpr) -> tl.tensor:
    """r, a, the multiplier sqrt(1 - a²) and its reciprocal, all (BT, BN)."""
    r = sigmoid(p)
    a, gap = _decay(rate * r)
    inverse = tl.rsqrt(tl.maximum(gap, LEAST))
    m = gap * inverse
    if STARTS != NONE:
        a, m = tl.where(opened, 0.0, a), tl.where(opened, 1.0, m)
    return r, a, m, inverse


@quick_jit(do_not_specialize=["unit"])
def forward_kernel(  # type: ignore[no-untyped-def]
    p, q, x, rate, starts, before, entering, out, ends, product, l, n, chunk, chunks, unit, DOWN: tl.constexpr,
    STARTS: tl.constexpr, ENDS: tl.constexpr, ENTERED: tl.constexpr, GIVEN: tl.constexpr, EVEN: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All states of one chunk into `out`, or (ENDS) its last state and the product of its a into `ends`, `product`.

    p, q, x, out (rows, l, d); rate (d,), before (rows, d), entering, ends, product (rows, chunks, d) float32; n is
    d / PER. DOWN: from the last step to the first. GIVEN: chunk 0 starts from `before`; ENTERED: the others from what
    `entering` holds for the chunk before them. `starts`: (rows,) where FIRST, (rows, l) where ANY. EVEN: no
    remainders. `unit` is 1, hidden from the compiler, which would otherwise use fewer threads with wider words.
    """
    n *= PER
    blocks = tl.cdiv(n, BN)
    pid = tl.program_id(0)
    j0 = (pid % blocks) * BN
    j = j0 + tl.arange(0, BN)
    c = (pid // blocks) % chunks
    row = (pid // (blocks * chunks)).to(tl.int64)
    own = j < n
    slope = tl.load(rate + j, mask=own, other=0.0)[None, :]
    WAY: tl.constexpr = -1 if DOWN else 1
    i = tl.arange(0, BT)
    tile = i[:, None] * (WAY * n) + tl.arange(0, BN)[None, :]  # (BT, BN)
    begin, end = (i == 0)[:, None], (i == BT - 1)[:, None]
    corner = row * l * n + j0 + PER * (unit - 1)
    p += corner
    q += corner
    x += corner
    out += corner
    front = -1
    if STARTS == FIRST:
        front = tl.where(tl.load(starts + row) != 0, l - 1 if DOWN else 0, -1)
    elif STARTS == ANY:
        starts += row * l
    h = tl.zeros((BN,), tl.float32)
    if ENTERED:
        h = tl.load(entering + (row * chunks + c - 1) * n + j, mask=own & (c > 0), other=0.0)
    if GIVEN:
        h = tl.where(c == 0, tl.load(before + row * n + j, mask=own, other=0.0), h)
    if ENDS:
        whole = tl.full((BN,), 1.0, tl.float32)
    for k in tl.range(0, tl.cdiv(tl.minimum(chunk, l - c * chunk), BT), num_stages=STAGES):
        t0 = l - 1 - c * chunk - k * BT if DOWN else c * chunk + k * BT
        t = t0 + WAY * i
        live = (t >= 0) & (t < l)
        valid = live[:, None] & own[None, :]
        at = t0 * n + tile
        opened = begin & (t0 == front)
        if STARTS == ANY:
            opened = _flags(starts + t, live, EVEN)
        _, a, m, _ = _gates(_load(p + at, valid, EVEN), slope, opened, STARTS)
        b = m * sigmoid(_load(q + at, valid, EVEN)) * _load(x + at, valid, EVEN)
        b = tl.where(begin, b + a * h[None, :], b)
        products, y = tl.associative_scan((a, b), 0, join_real)
        h = _at_end(y, end)
        if ENDS:
            whole *= _at_end(products, end)
        else:
            _store(out + at, y, valid, EVEN)
    if ENDS:
        here = (row * chunks + c) * n + j
        tl.store(ends + here, h, mask=own)
        tl.store(product + here, whole, mask=own)


@triton.jit
def _join_excluding(a1, b1, s1, e1, a2, b2, s2, e2):  # type: ignore[no-untyped-def]
    """a and b as usual; s and e the same without the last step, which for a single step is (1, -0)."""
    return a2 * a1, a2 * b1 + b2, s2 * a1, s2 * b1 + e2


@quick_jit(do_not_specialize=["unit"])
def backward_kernel(  # type: ignore[no-untyped-def]
    p, q, x, rate, starts, before, entering, states, g, gp, gq, gx, of_rate, ends, product, l, n, chunk, chunks, unit,
    DOWN: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr, ENTERED: tl.constexpr, GIVEN: tl.constexpr,
    EVEN: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradients of one chunk, or (ENDS) its own carried gradient and the product of its a, from p and g.

    With γ_t = g_t + c_{t+1} and c_t = a_t γ_t, the carried gradient, DOWN from the last step if the scan ran up:

        ∂log a_t = c_t h_{t-1} - γ_t i_t x_t a_t² min(1 / m_t, 2000),    ∂p = ∂log a rate r (1 - r)
        ∂q = γ m x i (1 - i),    ∂x = γ m i,    ∂rate = Σ ∂log a r,    ∂h0 = c_0

    `states` is the scan's h, `before` its h0 if GIVEN; of_rate, ends, product (rows, chunks, d), the first a part
    for each chunk. Chunk 0 is processed first.
    """
    n *= PER
    blocks = tl.cdiv(n, BN)
    pid = tl.program_id(0)
    j0 = (pid % blocks) * BN
    j = j0 + tl.arange(0, BN)
    c = (pid // blocks) % chunks
    row = (pid // (blocks * chunks)).to(tl.int64)
    own = j < n
    here = (row * chunks + c) * n + j
    slope = tl.load(rate + j, mask=own, other=0.0)[None, :]
    WAY: tl.constexpr = -1 if DOWN else 1
    i = tl.arange(0, BT)
    tile = i[:, None] * (WAY * n) + tl.arange(0, BN)[None, :]  # (BT, BN)
    begin, end = (i == 0)[:, None], (i == BT - 1)[:, None]
    corner = row * l * n + j0 + PER * (unit - 1)
    p += corner
    g += corner
    q += corner
    x += corner
    states += corner
    gp += corner
    gq += corner
    gx += corner
    last = 0 if DOWN else l - 1  # the scan's first step
    started = False
    if STARTS == FIRST:
        started = tl.load(starts + row) != 0
    elif STARTS == ANY:
        starts += row * l
    carry = tl.zeros((BN,), tl.float32)
    if ENTERED:
        carry = tl.load(entering + (row * chunks + c - 1) * n + j, mask=own & (c > 0), other=0.0)
    if GIVEN:
        initial = tl.load(before + row * n + j, mask=own, other=0.0)[None, :]
    whole = tl.full((BN,), 1.0, tl.float32)
    total = tl.zeros((BN,), tl.float32)
    for k in tl.range(0, tl.cdiv(tl.minimum(chunk, l - c * chunk), BT), num_stages=STAGES):
        t0 = l - 1 - c * chunk - k * BT if DOWN else c * chunk + k * BT
        t = t0 + WAY * i
        live = (t >= 0) & (t < l)
        valid = live[:, None] & own[None, :]
        at = t0 * n + tile
        if EVEN:  # decided at compile time within a tile
            final = end & (t0 + WAY * (BT - 1) == last)
            there = (i < BT - 1)[:, None] | (t0 + WAY * (BT - 1) != last)
        else:
            final = (t == last)[:, None]
            there = (t != last)[:, None] & valid
        opened = final & started
        if STARTS == ANY:
            opened = _flags(starts + t, live, EVEN)
        r, a, m, inverse = _gates(_load(p + at, valid, EVEN), slope, opened, STARTS)
        if not EVEN:
            a = tl.where(valid, a, 1.0)
        up = _load(g + at, valid, EVEN)
        b = tl.where(begin, a * (up + carry[None, :]), a * up)
        if ENDS:
            products, back = tl.associative_scan((a, b), 0, join_real)
            whole *= _at_end(products, end)
        else:
            one, zero = tl.full(a.shape, 1.0, tl.float32), tl.full(a.shape, -0.0, tl.float32)
            _, back, _, after = tl.associative_scan((a, b, one, zero), 0, _join_excluding)
            lam = up + tl.where(begin, carry[None, :], after)
            h = _load(states + at + WAY * n, there, False)
            if GIVEN:
                h = tl.where(final, initial, h)
            gate, u = sigmoid(_load(q + at, valid, EVEN)), _load(x + at, valid, EVEN)
            drawn = lam * gate
            _store(gx + at, drawn * m, valid, EVEN)
            _store(gq + at, drawn * m * u * (1.0 - gate), valid, EVEN)
            of_log = back * h - drawn * u * (a * a) * tl.minimum(inverse, STEEPEST)
            _store(gp + at, of_log * slope * (r * (1.0 - r)), valid, EVEN)
            share = of_log * r
            if not EVEN:
                share = tl.where(valid, share, 0.0)
            total += tl.sum(share, 0)
        carry = _at_end(back, end)
    tl.store(ends + here, carry, mask=own)
    if ENDS:
        tl.store(product + here, whole, mask=own)
    else:
        tl.store(of_rate + here, total, mask=own)
