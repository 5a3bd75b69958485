"""The kernels of `toeplitz_triton`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _coarse(x):  # type: ignore[no-untyped-def]
    """The nearest number with the eleven significant bits that a matrix unit uses of a float32."""
    bits = x.to(tl.int32, bitcast=True) + 0x1000
    return (bits & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def product_kernel(  # type: ignore[no-untyped-def]
    X, TABLE, H, M, OUT, b, l, d, s, BACK: tl.constexpr, ONTO: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    FINE: tl.constexpr, LINKED: tl.constexpr, BB: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One tile of BB sequences by BT steps: X (d b, l) and TABLE (d T, L) are tensor descriptors, L = l rounded up to
    whole slices; beyond its end X is read as zeros. EVEN: b is a multiple of BB; WHOLE: L = l.

    With FINE, float32: TABLE (2 d T, l) has the rounded values, then the remainders. A number is a sum of two that
    a matrix unit represents exactly; three of the four products give float32, the last is below its rounding.

    With LINKED, descriptors H (d b, s) and M (d l, s) as well: h M' is added.
    """
    slices, tiles = tl.cdiv(l, BT), tl.cdiv(b, BB)
    L = slices * BT
    pid = tl.program_id(0)
    c, rest = pid // (slices * tiles), pid % (slices * tiles)
    i, first_row = rest // tiles, (rest % tiles) * BB
    row = c * b + first_row
    if BACK:  # outputs [a, a + T) from inputs [a, L), rows 0 .. of the table: the first slice is the longest
        a = i * BT
        first, shift, count = a, -a, L - a
    else:  # from inputs [0, a + T), the last rows of the table: the last slice is the longest
        a = (slices - 1 - i) * BT
        first, shift, count = 0, L - BT - a, a + BT
    acc = tl.zeros((BB, BT), dtype=tl.float32)
    if LINKED:
        for k in tl.range(0, s, BK):
            acc = tl.dot(H.load([row, k]), M.load([c * l + a, k]).T, acc)
    for k in tl.range(first, first + count, BK):
        x = X.load([row, k])
        t = TABLE.load([c * BT, k + shift])
        if FINE:
            coarse = _coarse(x)
            acc = tl.dot(x - coarse, t.T, acc, input_precision="tf32")
            acc = tl.dot(coarse, TABLE.load([(d + c) * BT, k + shift]).T, acc, input_precision="tf32")
            acc = tl.dot(coarse, t.T, acc, input_precision="tf32")
        else:
            acc = tl.dot(x, t.T, acc)
    rows, steps = row + tl.arange(0, BB), a + tl.arange(0, BT)
    at = OUT + rows.to(tl.int64)[:, None] * l + steps[None, :]
    live = None if EVEN else (first_row + tl.arange(0, BB) < b)[:, None]
    if not WHOLE:
        live = (first_row + tl.arange(0, BB) < b)[:, None] & (steps < l)[None, :]
    if ONTO:
        acc += tl.load(at, mask=live).to(tl.float32)
    tl.store(at, acc.to(OUT.dtype.element_ty), mask=live)


@triton.jit
def table_kernel(K, AHEAD, BACK, l, T, FINE: tl.constexpr, BL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row n of both tables of one channel: ahead[n, i] = k_{n - i + l - T}, back[n, i] = k_{i - n}."""
    c, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BL)
    lag = n - i + l - T
    ahead = tl.load(K + c * l + lag, mask=(lag >= 0) & (i < l), other=0.0)
    back = tl.load(K + c * l + i - n, mask=(i >= n) & (i < l), other=0.0)
    at = (c * T + n) * l + i
    if FINE:
        coarse_ahead, coarse_back = _coarse(ahead), _coarse(back)
        rest = at + tl.num_programs(0).to(tl.int64) * T * l
        tl.store(AHEAD + rest, ahead - coarse_ahead, mask=i < l)
        tl.store(BACK + rest, back - coarse_back, mask=i < l)
        ahead, back = coarse_ahead, coarse_back
    tl.store(AHEAD + at, ahead.to(AHEAD.dtype.element_ty), mask=i < l)
    tl.store(BACK + at, back.to(BACK.dtype.element_ty), mask=i < l)


@triton.jit
def gradient_kernel(  # type: ignore[no-untyped-def]
    X, GY, PAIRS, b, l, n, WHOLE: tl.constexpr, BT: tl.constexpr, BB: tl.constexpr
):
    """PAIRS[c, q, s, t] = sum over slices p and sequences of x[p T + s] gy[(p + q) T + t], the nearest pairs first."""
    pid = tl.program_id(0)
    c, q = pid // n, pid % n
    s, sequence = tl.arange(0, BT), tl.arange(0, BB)
    base = c.to(tl.int64) * b * l
    acc = tl.zeros((BT, BT), dtype=tl.float32)
    chunks = tl.cdiv(b, BB)
    for step in tl.range(0, (n - q) * chunks):
        p, first = step // chunks, (step % chunks) * BB
        live = (first + sequence < b)[:, None]
        late = live
        if not WHOLE:
            live = live & (p * BT + s < l)[None, :]
            late = late & ((p + q) * BT + s < l)[None, :]
        at = base + (first + sequence).to(tl.int64)[:, None] * l + p * BT + s[None, :]
        x = tl.load(X + at, mask=live, other=0.0)
        g = tl.load(GY + at + q * BT, mask=late, other=0.0)
        acc = tl.dot(tl.trans(x), g, acc)
    out = pid.to(tl.int64) * BT * BT + s[:, None] * BT + s[None, :]
    tl.store(PAIRS + out, acc)


@triton.jit
def diagonal_kernel(PAIRS, SUMS, BT: tl.constexpr):  # type: ignore[no-untyped-def]
    """SUMS[j] = sum of the entries with t - s = j - T."""
    pid = tl.program_id(0).to(tl.int64)
    lag = tl.arange(0, 2 * BT) - BT
    total = tl.zeros((2 * BT,), dtype=tl.float32)
    for s in range(BT):
        t = s + lag
        total += tl.load(PAIRS + pid * BT * BT + s * BT + t, mask=(t >= 0) & (t < BT), other=0.0)
    tl.store(SUMS + pid * 2 * BT + tl.arange(0, 2 * BT), total)
