"""From the parameters of S4 to the tables of its passes, and back, with at most one matrix product each.

A_bar = R - sum_a U_a (2 Q_a)', with R a rotation and decay of each pair, is applied to a vector in O(s) operations:

    rows_kernel       iterates x_{t+1} = A x_t from one starting point of a channel, in float64; bound by the
                      latency of a warp reduction, some 250 cycles per step
    tables_kernel     A^T = R^T - sum_a sum_t (A^t U_a) (2 Q_a' R^{T-1-t}), one thin product, and the Toeplitz matrices
    spread_kernel     the gradients of tables as gradients of the rows
    back_kernel       the adjoint along the rows of one starting point, p_t = g_t + A' p_{t+1}
    gradient_kernel   from there to the gradients of the parameters, one program per channel

Each starting point j has its own A; the rows (cols, T, n, 2) are stored in the order of their pairs in A^T:

    0   B_bar, by A    1   c = 2 ‾C, by A'    2 + 2 a   U_a, by A    3 + 2 a   2 Q_a, by R', in reverse order
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.ops.dplr_bank.system_kernels import (
    enter,
    inner,
    load_pairs,
    load_system,
    mix,
    resolve,
    store_pairs,
    store_slopes,
)
from resolvent.ops.modes.triton_kernels import times
from resolvent.runtime.launch import quick_jit


@triton.jit
def _columns(j, ur, ui, qr, qi):  # type: ignore[no-untyped-def]
    """U and 2 Q of the A of starting point j."""
    turned, plain = j == 1, (j == 0) | (j % 2 == 0)
    lr = tl.where(plain, ur, tl.where(turned, 2 * qr, 0.0))
    li = tl.where(plain, ui, tl.where(turned, 2 * qi, 0.0))
    rr = tl.where(plain, 2 * qr, tl.where(turned, ur, 0.0))
    ri = tl.where(plain, 2 * qi, tl.where(turned, ui, 0.0))
    return lr, li, rr, ri


@triton.jit
def _place(j, t, T):  # type: ignore[no-untyped-def]
    """The offset of the row of step t."""
    return tl.where((j % 2 == 1) & (j > 1), T - 1 - t, t + j * 0)


@triton.jit
def _raise(ar, ai, count):  # type: ignore[no-untyped-def]
    """a^count, by squares."""
    hr, hi = ar * 0.0 + 1.0, ai * 0.0
    count += tl.program_id(0) * 0  # a launch specialises the value 1 to a constant, which a loop may not change
    while count > 0:
        odd = count % 2 == 1
        hr, hi = times(hr, hi, tl.where(odd, ar, 1.0), tl.where(odd, ai, 0.0))
        ar, ai = times(ar, ai, ar, ai)
        count = count // 2
    return hr, hi


@triton.jit
def _store_response(K, D, c, j, t, cr, ci, xr, xi):  # type: ignore[no-untyped-def]
    if j == 0:
        k = inner(cr, ci, xr, xi)
        if D is not None:
            k += tl.where(t == 0, tl.load(D + c).to(tl.float64), 0.0)
        tl.store(K + t + tl.arange(0, 1)[:, None], k.to(tl.float32))


@quick_jit
def rows_kernel(  # type: ignore[no-untyped-def]
    LOG_DECAY, FREQUENCY, P, B, LOG_DT, C, D, ROWS, K, M_IN, M_OUT, WHOLE, shared, n, T, cols,
    into_channel, into_row, out_channel, out_row, MARGIN,
    RANK: tl.constexpr, DELAY: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Where there are M_IN and M_OUT (d, T, 2 n), in any strides, those of j = 0 and 1 go there, and lam_bar^T to WHOLE
    (d, n, 2); all others to ROWS (d, cols, T, n, 2). K (d, T) has D at its place zero, or is None."""
    c, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BN)[:, None]
    live = i < n
    re, im, p0r, p0i, p1r, p1i, br, bi, dt = load_system(
        LOG_DECAY, FREQUENCY, P, B, LOG_DT, c, shared, n, i, live, RANK
    )
    fr, fi, g00, g01, g10, g11, scale = resolve(re, im, p0r, p0i, p1r, p1i, dt, live, MARGIN)
    u0r, u0i = mix(fr, fi, p0r, p0i, p1r, p1i, g00, g10, dt)
    u1r, u1i = mix(fr, fi, p0r, p0i, p1r, p1i, g01, g11, dt)
    q0r, q0i = times(fr, -fi, p0r, p0i)
    q1r, q1i = times(fr, -fi, p1r, p1i)
    br, bi, _, _ = enter(fr, fi, br, bi, u0r, u0i, u1r, u1i, q0r, q0i, q1r, q1i)
    ar, ai = scale * (2 * fr - 1.0), scale * 2 * fi
    u0r, u0i, u1r, u1i = u0r * scale, u0i * scale, u1r * scale, u1i * scale
    cr, ci = load_pairs(C, c * n + i, live)
    cr, ci = 2 * cr, -2 * ci
    l0r, l0i, r0r, r0i = _columns(j, u0r, u0i, q0r, q0i)
    xr = tl.where(j == 0, dt * br, tl.where(j == 1, cr, tl.where(j == 2, u0r, tl.where(j == 3, 2 * q0r, u1r))))
    xi = tl.where(j == 0, dt * bi, tl.where(j == 1, ci, tl.where(j == 2, u0i, tl.where(j == 3, 2 * q0i, u1i))))
    if RANK == 2:
        l1r, l1i, r1r, r1i = _columns(j, u1r, u1i, q1r, q1i)
        xr, xi = tl.where(j == 5, 2 * q1r, xr), tl.where(j == 5, 2 * q1i, xi)
    if WHOLE is not None:
        hr, hi = _raise(ar, ai, T)
        store_pairs(WHOLE, c * n + i, hr, hi, live & (j == 0))
    si = tl.where(j % 2 == 1, -ai, ai)
    for t in range(T):
        if K is not None:
            _store_response(K + c * T, D, c, j, t, cr, ci, xr, xi)
        s0 = inner(r0r, r0i, xr, xi)
        yr, yi = times(ar, si, xr, xi)
        yr, yi = yr - l0r * s0, yi - l0i * s0
        if RANK == 2:
            s1 = inner(r1r, r1i, xr, xi)
            yr, yi = yr - l1r * s1, yi - l1i * s1
        if (M_IN is None) or (j > 1):
            store_pairs(ROWS, ((c * cols + j) * T + _place(j, t, T)) * n + i, xr, xi, live)
        elif j == 0:
            store_pairs(M_IN + c * into_channel + (T - 1 - t) * into_row, i, xr, xi, live)
        elif DELAY:
            store_pairs(M_OUT + c * out_channel + t * out_row, i, xr, xi, live)
        else:
            store_pairs(M_OUT + c * out_channel + t * out_row, i, yr, yi, live)
        xr, xi = yr, yi


@quick_jit
def tables_kernel(  # type: ignore[no-untyped-def]
    ROWS, WHOLE, K, TOEPLITZ, TURNED, POWER, n, T, cols, row,
    RANK: tl.constexpr, DELAY: tl.constexpr, BA: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """POWER (d, s, s) = (A^T)' from ROWS and lam_bar^T; K along the diagonals of TOEPLITZ (d, T, T) in rows of `row`
    numbers, and of its transpose TURNED. A program writes BA rows of POWER, the first of a channel the others, too."""
    c, s, i = tl.program_id(0).to(tl.int64), 2 * n, tl.arange(0, STEP)
    a, b = tl.program_id(1) * BA + tl.arange(0, BA), tl.arange(0, BS)
    found = tl.zeros((BA, BS), tl.float32)
    for rank in tl.static_range(RANK):
        at = (c * cols + 2 + 2 * rank) * T
        for first in range(0, T, STEP):
            t = first + i
            u = tl.load(ROWS + (at + t)[:, None] * s + b[None, :], mask=(t < T)[:, None] & (b < s)[None, :], other=0.0)
            v = tl.load(
                ROWS + (at + T + t)[None, :] * s + a[:, None], mask=(t < T)[None, :] & (a < s)[:, None], other=0.0
            )
            found += tl.dot(v, u, input_precision="ieee")
    live = (a < s)[:, None] & (b < s)[None, :]
    pair = live & (a[:, None] // 2 == b[None, :] // 2)
    even = a[:, None] % 2 == b[None, :] % 2
    own = tl.load(WHOLE + c * s + (a // 2)[:, None] * 2 + tl.where(even, 0, 1), mask=pair, other=0.0)
    own = tl.where(even | (a[:, None] % 2 == 0), own, -own)
    tl.store(POWER + (c * s + a[:, None]) * s + b[None, :], own - found, mask=live)
    if TOEPLITZ is not None:
        _lay_diagonals(K + c * T, TOEPLITZ + c * T * row, TURNED + c * T * row, T, row, DELAY, BT, STEP)


@triton.jit
def _lay_diagonals(  # type: ignore[no-untyped-def]
    K, AHEAD, BACK, T, row, DELAY: tl.constexpr, BT: tl.constexpr, STEP: tl.constexpr
):
    if tl.program_id(1) == 0:
        j = tl.arange(0, BT)[None, :]
        for first in range(0, T, STEP):
            r = first + tl.arange(0, STEP)[:, None]
            there, at = (r < T) & (j < T), r * row + j
            k = j - r - DELAY
            tl.store(
                AHEAD + at, tl.load(K + k, mask=there & (k >= 0), other=0.0).to(AHEAD.dtype.element_ty), mask=there
            )
            k = r - j - DELAY
            tl.store(BACK + at, tl.load(K + k, mask=there & (k >= 0), other=0.0).to(BACK.dtype.element_ty), mask=there)


@quick_jit
def spread_kernel(  # type: ignore[no-untyped-def]
    ROWS, G_TOEPLITZ, G_IN, G_OUT, G_POWER, G_ROWS, G_K, n, T, cols,
    into_channel, into_row, out_channel, out_row, out_step, power_channel, power_row,
    RANK: tl.constexpr, DELAY: tl.constexpr, BS: tl.constexpr, PART: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """G_ROWS (d, cols, T, 2 n), the gradients of the rows, and G_K (d, T), from those of the tables.

    G_IN has rows of `into_row` numbers, G_OUT (T, 2 n) its numbers `out_step` apart, G_TOEPLITZ rows of `into_row`.
    """
    c, s, i = tl.program_id(0).to(tl.int64), 2 * n, tl.arange(0, STEP)
    t, b = tl.program_id(1) * STEP + i, tl.arange(0, BS)
    live = (t < T)[:, None] & (b < s)[None, :]
    own = G_ROWS + c * cols * T * s + b[None, :]
    g = tl.load(G_IN + c * into_channel + (T - 1 - t)[:, None] * into_row + b[None, :], mask=live, other=0.0)
    tl.store(own + t[:, None] * s, g, mask=live)
    g = tl.load(G_OUT + c * out_channel + t[:, None] * out_row + b[None, :] * out_step, mask=live, other=0.0)
    tl.store(own + (T + t)[:, None] * s, g, mask=live)
    for rank in tl.static_range(RANK):
        at = (2 + 2 * rank) * T
        gu, gv = tl.zeros((STEP, BS), tl.float32), tl.zeros((STEP, BS), tl.float32)
        for first in range(0, s, PART):
            a = first + tl.arange(0, PART)
            there = (t < T)[:, None] & (a < s)[None, :]
            x = ROWS + c * cols * T * s + (at + t)[:, None] * s + a[None, :]
            u = tl.load(x, mask=there, other=0.0)
            v = tl.load(x + T * s, mask=there, other=0.0)
            within = (a < s)[:, None] & (b < s)[None, :]
            w = G_POWER + c * power_channel
            gu += tl.dot(
                v, tl.load(w + a[:, None] * power_row + b[None, :], mask=within, other=0.0), input_precision="ieee"
            )
            gv += tl.dot(
                u, tl.load(w + b[None, :] * power_row + a[:, None], mask=within, other=0.0), input_precision="ieee"
            )
        tl.store(own + (at + t)[:, None] * s, -gu, mask=live)
        tl.store(own + (at + T + t)[:, None] * s, -gv, mask=live)
    if G_TOEPLITZ is not None:
        total = tl.zeros((STEP,), tl.float32)
        for first in range(0, T, STEP):
            r = first + i[:, None]
            k = r + t[None, :] + DELAY
            row = tl.load(G_TOEPLITZ + c * into_channel + r * into_row + k, mask=(r < T) & (k < T), other=0.0)
            total += tl.sum(row, 0)
        tl.store(G_K + c * T + t, total, mask=t < T)


@triton.jit
def _load_rows(ROWS, G_ROWS, G_K, at, t, T, n, i, j, live, DELAY: tl.constexpr):  # type: ignore[no-untyped-def]
    """x_t, the gradient of its rows, and that of K_t."""
    there = live & (t >= 0)
    place = _place(j, t, T)
    xr, xi = load_pairs(ROWS, (at + place) * n + i, there)
    own = place if DELAY else tl.where(j == 1, place - 1, place)  # M_out starts at A' c
    gr, gi = load_pairs(G_ROWS, (at + own) * n + i, there & (own >= 0))
    gk = tl.load(G_K + t, mask=(t >= 0) & (j == 0), other=0.0).to(tl.float64)
    return xr, xi, gr, gi, gk


@triton.jit
def _store_sum(SUMS, at, part, rank, re, im, i, n, live):  # type: ignore[no-untyped-def]
    tl.store(SUMS + ((at * (3 + 2 * rank) + part) * 2) * n + i, re, mask=live)
    tl.store(SUMS + ((at * (3 + 2 * rank) + part) * 2 + 1) * n + i, im, mask=live)


@quick_jit
def back_kernel(  # type: ignore[no-untyped-def]
    LOG_DECAY, FREQUENCY, P, B, LOG_DT, C, ROWS, G_ROWS, G_K, SUMS, shared, n, T, cols, MARGIN,
    RANK: tl.constexpr, DELAY: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """SUMS (d, cols, 3 + 2 RANK, 2, n) in float64: the gradients of the starting point, of lam, for j = 0 of c by K,
    then ∂L and ∂R of each column. With L and R for U and 2 Q of this A, x for its rows, p for what comes back,

        p_t = g_t + ‾lam p_{t+1} - R <L, p_{t+1}>,    ∂L = -sum p_{t+1} <R, x_t>,    ∂R = -sum x_t <L, p_{t+1}>
    """
    c, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BN)[:, None]
    live = i < n
    re, im, p0r, p0i, p1r, p1i, _, _, dt = load_system(LOG_DECAY, FREQUENCY, P, B, LOG_DT, c, shared, n, i, live, RANK)
    fr, fi, g00, g01, g10, g11, scale = resolve(re, im, p0r, p0i, p1r, p1i, dt, live, MARGIN)
    u0r, u0i = mix(fr, fi, p0r, p0i, p1r, p1i, g00, g10, dt)
    q0r, q0i = times(fr, -fi, p0r, p0i)
    l0r, l0i, r0r, r0i = _columns(j, u0r * scale, u0i * scale, q0r, q0i)
    if RANK == 2:
        u1r, u1i = mix(fr, fi, p0r, p0i, p1r, p1i, g01, g11, dt)
        q1r, q1i = times(fr, -fi, p1r, p1i)
        l1r, l1i, r1r, r1i = _columns(j, u1r * scale, u1i * scale, q1r, q1i)
    ar, ai = scale * (2 * fr - 1.0), scale * 2 * fi
    ai = tl.where(j % 2 == 1, -ai, ai)
    cr, ci = load_pairs(C, c * n + i, live)
    none, at = ar * 0.0, (c * cols + j) * T
    elr, eli, gcr, gci, a0r, a0i, b0r, b0i = none, none, none, none, none, none, none, none
    if RANK == 2:
        a1r, a1i, b1r, b1i = none, none, none, none
    pr, pi = none, none
    if not DELAY:
        pr, pi = load_pairs(G_ROWS, (at + T - 1) * n + i, live & (j == 1))
    xr, xi, gr, gi, gk = _load_rows(ROWS, G_ROWS, G_K + c * T, at, T - 1, T, n, i, j, live, DELAY)
    for back in range(T):
        # prefetches the rows of the previous step
        nxr, nxi, ngr, ngi, ngk = _load_rows(ROWS, G_ROWS, G_K + c * T, at, T - 2 - back, T, n, i, j, live, DELAY)
        s0, z0 = inner(r0r, r0i, xr, xi), inner(l0r, l0i, pr, pi)
        a0r, a0i, b0r, b0i = a0r - pr * s0, a0i - pi * s0, b0r - xr * z0, b0i - xi * z0
        er, ei = times(pr, pi, xr, -xi)
        elr, eli = elr + er, eli + ei
        gcr, gci = gcr + gk * xr, gci + gk * xi
        yr, yi = times(pr, pi, ar, -ai)
        yr, yi = yr - r0r * z0, yi - r0i * z0
        if RANK == 2:
            s1, z1 = inner(r1r, r1i, xr, xi), inner(l1r, l1i, pr, pi)
            a1r, a1i, b1r, b1i = a1r - pr * s1, a1i - pi * s1, b1r - xr * z1, b1i - xi * z1
            yr, yi = yr - r1r * z1, yi - r1i * z1
        pr, pi = yr + gr + 2 * gk * cr, yi + gi - 2 * gk * ci
        xr, xi, gr, gi, gk = nxr, nxi, ngr, ngi, ngk
    at = c * cols + j
    _store_sum(SUMS, at, 0, RANK, pr, pi, i, n, live)
    _store_sum(SUMS, at, 1, RANK, elr, eli, i, n, live)
    _store_sum(SUMS, at, 2, RANK, gcr, gci, i, n, live)
    _store_sum(SUMS, at, 3, RANK, a0r, a0i, i, n, live)
    _store_sum(SUMS, at, 4, RANK, b0r, b0i, i, n, live)
    if RANK == 2:
        _store_sum(SUMS, at, 5, RANK, a1r, a1i, i, n, live)
        _store_sum(SUMS, at, 6, RANK, b1r, b1i, i, n, live)


@triton.jit
def _load_sum(SUMS, at, part, rank, i, n, live):  # type: ignore[no-untyped-def]
    place = SUMS + ((at * (3 + 2 * rank) + part) * 2) * n + i
    return tl.load(place, mask=live, other=0.0), tl.load(place + n, mask=live, other=0.0)


@quick_jit
def gradient_kernel(  # type: ignore[no-untyped-def]
    LOG_DECAY, FREQUENCY, P, B, LOG_DT, SUMS, G_POWER,
    G_DECAY, G_FREQUENCY, G_P, G_B, G_DT, G_C, shared, n, row, T, cols, power_channel, power_row, MARGIN,
    RANK: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """The parameters' gradients, one row per channel, from the sums of its starting points and from A^T's gradient."""
    c = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BN)[:, None], tl.arange(0, BJ)[None, :]
    live = i < n
    re, im, p0r, p0i, p1r, p1i, br, bi, dt = load_system(
        LOG_DECAY, FREQUENCY, P, B, LOG_DT, c, shared, n, i, live, RANK
    )
    fr, fi, g00, g01, g10, g11, scale = resolve(re, im, p0r, p0i, p1r, p1i, dt, live, MARGIN)
    at, kept = c * cols + j, live & (j < cols)
    pr, pi = _load_sum(SUMS, at, 0, RANK, i, n, kept)
    elr, eli = _load_sum(SUMS, at, 1, RANK, i, n, kept)
    fcr, fci = _load_sum(SUMS, c * cols, 2, RANK, i, n, live)
    a0r, a0i = _load_sum(SUMS, at, 3, RANK, i, n, kept)
    b0r, b0i = _load_sum(SUMS, at, 4, RANK, i, n, kept)
    gu0r, gu0i, gq0r, gq0i = _collect(j, a0r, a0i, b0r, b0i, pr, pi, 2)
    if RANK == 2:
        a1r, a1i = _load_sum(SUMS, at, 5, RANK, i, n, kept)
        b1r, b1i = _load_sum(SUMS, at, 6, RANK, i, n, kept)
        gu1r, gu1i, gq1r, gq1i = _collect(j, a1r, a1i, b1r, b1i, pr, pi, 4)
    else:
        gu1r, gu1i, gq1r, gq1i = gu0r * 0.0, gu0i * 0.0, gq0r * 0.0, gq0i * 0.0
    glr, gli = tl.sum(elr, 1, keep_dims=True), tl.sum(tl.where(j % 2 == 1, -eli, eli), 1, keep_dims=True)
    # gradient of R^T, the diagonal blocks of A^T
    w = G_POWER + c * power_channel + 2 * i * power_row + 2 * i
    wr = tl.load(w, mask=live, other=0.0) + tl.load(w + power_row + 1, mask=live, other=0.0)
    wi = tl.load(w + 1, mask=live, other=0.0) - tl.load(w + power_row, mask=live, other=0.0)
    hr, hi = _raise(scale * (2 * fr - 1.0), scale * 2 * fi, T - 1)
    wr, wi = times(wr.to(tl.float64), wi.to(tl.float64), hr * T, -hi * T)
    gbr, gbi = _pick(j, pr, pi, 0)
    ecr, eci = _pick(j, pr, pi, 1)
    store_pairs(G_C, c * n + i, 2 * (ecr + fcr), -2 * (eci + fci), live)
    store_slopes(
        G_DECAY, G_FREQUENCY, G_P, G_B, G_DT, LOG_DECAY, LOG_DT, c, shared, n, row, i, live,
        re, im, p0r, p0i, p1r, p1i, br, bi, dt, fr, fi, g00, g01, g10, g11, scale,
        glr + wr, gli + wi, gu0r, gu0i, gu1r, gu1i, gq0r, gq0i, gq1r, gq1i, gbr, gbi, MARGIN, RANK,
    )  # fmt: skip


@triton.jit
def _pick(j, xr, xi, column):  # type: ignore[no-untyped-def]
    own = j == column
    return tl.sum(tl.where(own, xr, 0.0), 1, keep_dims=True), tl.sum(tl.where(own, xi, 0.0), 1, keep_dims=True)


@triton.jit
def _collect(j, ar, ai, br, bi, pr, pi, column):  # type: ignore[no-untyped-def]
    """The gradients of U_a and Q_a from those of L and R, (BN, columns), and of their own starting points."""
    plain, turned = (j == 0) | (j % 2 == 0), j == 1
    ur = tl.where(plain, ar, tl.where(turned, br, 0.0)) + tl.where(j == column, pr, 0.0)
    ui = tl.where(plain, ai, tl.where(turned, bi, 0.0)) + tl.where(j == column, pi, 0.0)
    qr = tl.where(plain, br, tl.where(turned, ar, 0.0)) + tl.where(j == column + 1, pr, 0.0)
    qi = tl.where(plain, bi, tl.where(turned, ai, 0.0)) + tl.where(j == column + 1, pi, 0.0)
    return (
        tl.sum(ur, 1, keep_dims=True), tl.sum(ui, 1, keep_dims=True),
        2 * tl.sum(qr, 1, keep_dims=True), 2 * tl.sum(qi, 1, keep_dims=True),
    )  # fmt: skip
