"""From a diagonal layer's parameters to the tables of its blocked pass, and the gradients: one program per channel.

With z = log lam and w the read-out of y from the state (`modes`), both in float64 as in `blocked.tables`, a table has

    lam^(k+1)      POWERS        lam^k                M_IN, rows in reverse order
    ‾(w lam^e)     M_OUT         Re sum_n w lam^k     the kernel, along the diagonals of TOEPLITZ        k = 0 .. T-1

e = k + 1; with DELAY e = k, and the kernel shifts by one step. A power is exp(k z) with its angle reduced in float64,
so that the rest is accurate in float32. Gradients of powers are with respect to z: that of lam^e is e lam^e.
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.runtime.launch import quick_jit

LOWEST, HIGHEST = tl.constexpr(-40.0), tl.constexpr(30.0)  # `init.timestep`: limits of a logarithm
TURN = tl.constexpr(6.283185307179586)
SMALL = tl.constexpr(1e-2)  # |z| below which (e^z - 1)/z is a series: accurate to float64
FAINT = tl.constexpr(1e-30)  # lower limit of a real lam, for its logarithm
S4D, DSS, EMA = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def times(ar, ai, br, bi):  # type: ignore[no-untyped-def]
    return ar * br - ai * bi, ar * bi + ai * br


@triton.jit
def clamp_exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(tl.minimum(tl.maximum(x, LOWEST), HIGHEST))


@triton.jit
def moves(x):  # type: ignore[no-untyped-def]
    """1 where `clamp_exp` follows x, else 0."""
    return tl.where((x >= LOWEST) & (x <= HIGHEST), 1.0, 0.0)


@triton.jit
def growth(zr, zi):  # type: ignore[no-untyped-def]
    """f(z) = (e^z - 1)/z and f'(z) = (1 + (z - 1) f)/z."""
    size = zr * zr + zi * zi
    near = size < SMALL * SMALL
    er, ei = tl.exp(zr) * tl.cos(zi), tl.exp(zr) * tl.sin(zi)
    safe = tl.where(near, 1.0, size)
    fr, fi = times(er - 1.0, ei, zr / safe, -zi / safe)
    tr, ti = times(zr - 1.0, zi, fr, fi)
    sr, si = times(tr + 1.0, ti, zr / safe, -zi / safe)
    z2r, z2i = times(zr, zi, zr, zi)
    z3r, z3i = times(z2r, z2i, zr, zi)
    z4r, z4i = times(z2r, z2i, z2r, z2i)
    fr = tl.where(near, 1.0 + zr / 2 + z2r / 6 + z3r / 24 + z4r / 120, fr)
    fi = tl.where(near, zi / 2 + z2i / 6 + z3i / 24 + z4i / 120, fi)
    sr = tl.where(near, 0.5 + zr / 3 + z2r / 8 + z3r / 30 + z4r / 144, sr)
    si = tl.where(near, zi / 3 + z2i / 8 + z3i / 30 + z4i / 144, si)
    return fr, fi, sr, si


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _load(P, at, live):  # type: ignore[no-untyped-def]
    return tl.load(P + at, mask=live, other=0.0).to(tl.float64)


@triton.jit
def _root(n):  # type: ignore[no-untyped-def]
    """sqrt(n), which is a constant instead of a tensor if n is 1, by specialisation."""
    return tl.sqrt(tl.full((1,), n, tl.float64))


@triton.jit
def modes(P0, P1, P2, P3, P4, c, n, j, live, KIND: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """z and w (BN,) of channel c, in float64; z not yet limited below zero."""
    at = c * n + j
    if KIND == EMA:
        p, delta = _sigmoid(_load(P0, at, live)), _sigmoid(_load(P1, at, live))
        zr = tl.log(tl.maximum(1.0 - p * delta, FAINT))
        wr = p * _load(P2, at, live) * _load(P3, at, live) / _root(n)
        return zr, zr * 0.0, wr, wr * 0.0
    else:
        own = j if KIND == DSS else at
        re, im = -clamp_exp(_load(P0, own, live)), _load(P1, own, live)
        first, last = (
            clamp_exp(tl.load(P2 + c * STEPS).to(tl.float64)),
            clamp_exp(tl.load(P2 + c * STEPS + STEPS - 1).to(tl.float64)),
        )
        zr, zi = first * re, last * im
        fr, fi, _, _ = growth(zr, zi)
        ar, ai = _load(P3, 2 * at, live), _load(P3, 2 * at + 1, live)
        if KIND == DSS:  # w = W f(z) z / lam
            size = re * re + im * im
            br, bi = times(zr, zi, re / size, -im / size)
        else:  # w = 2 C B f(z) dt
            br, bi = 2 * first * _load(P4, 2 * at, live), 2 * first * _load(P4, 2 * at + 1, live)
        wr, wi = times(ar, ai, br, bi)
        wr, wi = times(wr, wi, fr, fi)
        return zr, zi, wr, wi


@triton.jit
def power(zr, zi, k):  # type: ignore[no-untyped-def]
    """exp(k z), (rows, BN) in float32, for integers k (rows,)."""
    k = k.to(tl.float64)[:, None]
    turns = k * (zi / TURN)[None, :]
    angle = ((turns - tl.floor(turns + 0.5)) * TURN).to(tl.float32)
    size = tl.exp((k * zr[None, :]).to(tl.float32))
    return size * tl.cos(angle), size * tl.sin(angle)


@triton.jit
def powers(zr, zi, first, fr, fi):  # type: ignore[no-untyped-def]
    """exp(k z), (rows, BN), for rows from `first` on: one exponential for all, times the first rows' f."""
    br, bi = power(zr, zi, tl.zeros((1,), tl.int32) + first)
    return times(br, bi, fr, fi)


@quick_jit
def tables_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, P3, P4, D, TOEPLITZ, TURNED, M_IN, M_OUT, POWERS, WHOLE, n, T, row, into, out, LARGEST,
    KIND: tl.constexpr, PAIR: tl.constexpr, DELAY: tl.constexpr, STEPS: tl.constexpr,
    BN: tl.constexpr, BT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`row`, `into` and `out` are the strides between rows of TOEPLITZ, M_IN and M_OUT; a channel has T rows of each.

    TURNED, if given, receives the transposed Toeplitz matrix, in rows of `out`; POWERS may be None.
    """
    c, j, column = tl.program_id(0).to(tl.int64), tl.arange(0, BN), tl.arange(0, BT)
    live = j < n
    zr, zi, wr, wi = modes(P0, P1, P2, P3, P4, c, n, j, live, KIND, STEPS)
    zr = tl.minimum(zr, LARGEST)
    wr, wi = tl.where(live, wr, 0.0).to(tl.float32), tl.where(live, wi, 0.0).to(tl.float32)
    S: tl.constexpr = 2 if PAIR else 1  # reals per number
    fr, fi = power(zr, zi, tl.arange(0, ROWS))
    ur, ui = power(zr, zi, tl.full((1,), 1, tl.int32))
    for first in range(0, T, ROWS):
        k = first + tl.arange(0, ROWS)
        there = (k < T)[:, None] & live[None, :]
        number = j[None, :] * S
        at = (c * T + k)[:, None] * out + number
        qr, qi = powers(zr, zi, first, fr, fi)
        pr, pi = times(qr, qi, ur, ui)
        if POWERS is not None:
            own = (c * T + k)[:, None] * n * S + number
            tl.store(POWERS + own, pr, mask=there)
            if PAIR:
                tl.store(POWERS + own + 1, pi, mask=there)
        back = (c * T + T - 1 - k)[:, None] * into + number
        tl.store(M_IN + back, qr.to(M_IN.dtype.element_ty), mask=there)
        vr, vi = times(wr[None, :], wi[None, :], qr, qi)  # w lam^k
        if DELAY:
            tl.store(M_OUT + at, vr.to(M_OUT.dtype.element_ty), mask=there)
            lr, li = power(zr, zi, k - 1)
            kr, _ = times(wr[None, :], wi[None, :], lr, li)
            kernel = tl.where(k > 0, tl.sum(tl.where(live[None, :], kr, 0.0), 1), 0.0)
        else:
            nr, ni = times(wr[None, :], wi[None, :], pr, pi)
            tl.store(M_OUT + at, nr.to(M_OUT.dtype.element_ty), mask=there)
            kernel = tl.sum(tl.where(live[None, :], vr, 0.0), 1)
            if D is not None:
                kernel += tl.where(k == 0, tl.load(D + c), 0.0)
        if PAIR:
            tl.store(M_IN + back + 1, qi.to(M_IN.dtype.element_ty), mask=there)
            if DELAY:
                tl.store(M_OUT + at + 1, (-vi).to(M_OUT.dtype.element_ty), mask=there)
            else:
                tl.store(M_OUT + at + 1, (-ni).to(M_OUT.dtype.element_ty), mask=there)
        i = column[None, :]
        _store_diagonals(TOEPLITZ + c * T * row, kernel, i, k[:, None], T, row, 1)
        if TURNED is not None:
            _store_diagonals(TURNED + c * T * out, kernel, i, k[:, None], T, 1, out)
    end = tl.zeros((1,), tl.int32) + T
    hr, hi = power(zr, zi, end)
    at = (c * n + j)[None, :] * S
    tl.store(WHOLE + at, hr, mask=live[None, :])
    if PAIR:
        tl.store(WHOLE + at + 1, hi, mask=live[None, :])


@triton.jit
def _store_diagonals(MATRIX, kernel, i, k, T, down, across):  # type: ignore[no-untyped-def]
    """Row i, column i + k of the Toeplitz matrix, and zeros below its diagonal: row i = k, columns before it."""
    values = (kernel[:, None] + i * 0.0).to(MATRIX.dtype.element_ty)
    tl.store(MATRIX + i * down + (i + k) * across, values, mask=i + k < T)
    tl.store(MATRIX + k * down + i * across, tl.zeros_like(values), mask=(i < k) & (k < T))


@triton.jit
def _collect(G, at, there, across, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradients of real and imaginary parts, (rows, BN)."""
    gr = tl.load(G + at, mask=there, other=0.0)
    gi = tl.load(G + at + across, mask=there, other=0.0) if PAIR else gr * 0.0
    return gr, gi


@triton.jit
def against(pr, pi, gr, gi):  # type: ignore[no-untyped-def]
    """‾p g."""
    return pr * gr + pi * gi, pr * gi - pi * gr


@quick_jit
def gradient_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, P3, P4, G_TOEPLITZ, G_IN, G_OUT, G_POWERS, G_WHOLE, O0, O1, O2, O3, O4, OD, n, T,
    each, row, each_in, into, each_out, out, across, parts, LARGEST,
    KIND: tl.constexpr, PAIR: tl.constexpr, DELAY: tl.constexpr, STEPS: tl.constexpr,
    BN: tl.constexpr, BT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The parameters' gradients from those of the tables; those shared by DSS's channels are one row per channel.

    `each`, `each_in`, `each_out`: strides between channels of the gradients; `row`, `into`, `out`: between rows;
    `across`: between columns of M_OUT's. G_WHOLE (d, parts, n) is summed over its parts.
    """
    c, j, column = tl.program_id(0).to(tl.int64), tl.arange(0, BN), tl.arange(0, BT)
    live = j < n
    zr, zi, wr, wi = modes(P0, P1, P2, P3, P4, c, n, j, live, KIND, STEPS)
    free = zr <= LARGEST
    hr = tl.minimum(zr, LARGEST)
    S: tl.constexpr = 2 if PAIR else 1
    # of w, sum ‾lam^e G; of z through w lam^e, sum e ‾lam^e G; of z through powers alone
    ar, ai = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    er, ei = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    sr, si = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    now = 0.0
    fr, fi = power(hr, zi, tl.arange(0, ROWS))
    ur, ui = power(hr, zi, tl.full((1,), 1, tl.int32))
    for first in range(0, T, ROWS):
        k = first + tl.arange(0, ROWS)
        there = (k < T)[:, None] & live[None, :]
        number = j[None, :] * S
        lower = k.to(tl.float32)[:, None]  # the exponent k
        qr, qi = powers(hr, zi, first, fr, fi)
        pr, pi = times(qr, qi, ur, ui)
        if G_TOEPLITZ is not None:
            i, lag = column[None, :], k[:, None]
            along = tl.load(G_TOEPLITZ + c * each + i * row + i + lag, mask=i + lag < T, other=0.0)
            g = tl.sum(along, 1)  # of the kernel, (rows,)
            if DELAY:
                lr, li = power(hr, zi, k - 1)
                xr, xi = against(lr, li, tl.where(k > 0, g, 0.0)[:, None], 0.0)
                xr, xi = tl.where(there, xr, 0.0), tl.where(there, xi, 0.0)
                er += tl.sum(xr * (lower - 1.0), 0)
                ei += tl.sum(xi * (lower - 1.0), 0)
            else:
                now += tl.sum(tl.where(k == 0, g, 0.0), 0)
                xr, xi = against(qr, qi, g[:, None], 0.0)
                xr, xi = tl.where(there, xr, 0.0), tl.where(there, xi, 0.0)
                er += tl.sum(xr * lower, 0)
                ei += tl.sum(xi * lower, 0)
            ar += tl.sum(xr, 0)
            ai += tl.sum(xi, 0)
        if G_OUT is not None:  # it is for the conjugate of w lam^e
            gr, gi = _collect(G_OUT, c * each_out + k[:, None] * out + number * across, there, across, PAIR)
            if DELAY:
                xr, xi = against(qr, qi, gr, -gi)
                steps = lower
            else:
                xr, xi = against(pr, pi, gr, -gi)
                steps = lower + 1.0
            xr, xi = tl.where(there, xr, 0.0), tl.where(there, xi, 0.0)
            ar += tl.sum(xr, 0)
            ai += tl.sum(xi, 0)
            er += tl.sum(xr * steps, 0)
            ei += tl.sum(xi * steps, 0)
        if G_IN is not None:
            gr, gi = _collect(G_IN, c * each_in + (T - 1 - k)[:, None] * into + number, there, 1, PAIR)
            xr, xi = against(qr, qi, gr, gi)
            sr += tl.sum(tl.where(there, xr * lower, 0.0), 0)
            si += tl.sum(tl.where(there, xi * lower, 0.0), 0)
        if G_POWERS is not None:
            gr, gi = _collect(G_POWERS, (c * T + k)[:, None] * n * S + number, there, 1, PAIR)
            xr, xi = against(pr, pi, gr, gi)
            sr += tl.sum(tl.where(there, xr * (lower + 1.0), 0.0), 0)
            si += tl.sum(tl.where(there, xi * (lower + 1.0), 0.0), 0)
    if G_WHOLE is not None:
        end = tl.zeros((1,), tl.int32) + T
        pr, pi = power(hr, zi, end)
        at = (c * parts * n + j)[None, :] * S
        gr, gi = _collect(G_WHOLE, at, live[None, :], 1, PAIR)
        for part in range(1, parts):
            tr, ti = _collect(G_WHOLE, at + part * n * S, live[None, :], 1, PAIR)
            gr += tr
            gi += ti
        xr, xi = against(pr, pi, gr, gi)
        sr += tl.sum(tl.where(live[None, :], xr, 0.0), 0) * T
        si += tl.sum(tl.where(live[None, :], xi, 0.0), 0) * T
    gwr, gwi = ar.to(tl.float64), ai.to(tl.float64)
    gzr, gzi = against(wr, wi, er.to(tl.float64), ei.to(tl.float64))
    gzr, gzi = tl.where(free, gzr + sr.to(tl.float64), 0.0), gzi + si.to(tl.float64)
    hand_on(
        P0, P1, P2, P3, P4, O0, O1, O2, O3, O4, c, n, j, live, zr, zi, gzr, gzi, gwr, gwi, KIND, STEPS,
    )  # fmt: skip
    if OD is not None:
        tl.store(OD + c, now)


@triton.jit
def hand_on(  # type: ignore[no-untyped-def]
    P0, P1, P2, P3, P4, O0, O1, O2, O3, O4, c, n, j, live, zr, zi, gzr, gzi, gwr, gwi,
    KIND: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """From the gradients of z and w to those of the parameters, reversing `modes`."""
    at = c * n + j
    if KIND == EMA:
        p, delta = _sigmoid(_load(P0, at, live)), _sigmoid(_load(P1, at, live))
        beta, eta, root = _load(P2, at, live), _load(P3, at, live), _root(n)
        gq = gzr / tl.maximum(1.0 - p * delta, FAINT)
        gp = beta * eta / root * gwr - delta * gq
        tl.store(O0 + at, (gp * p * (1.0 - p)).to(tl.float32), mask=live)
        tl.store(O1 + at, (-p * gq * delta * (1.0 - delta)).to(tl.float32), mask=live)
        tl.store(O2 + at, (p * eta / root * gwr).to(tl.float32), mask=live)
        tl.store(O3 + at, (p * beta / root * gwr).to(tl.float32), mask=live)
    else:
        own = j if KIND == DSS else at
        decay, im = _load(P0, own, live), _load(P1, own, live)
        re = -clamp_exp(decay)
        log_first, log_last = tl.load(P2 + c * STEPS).to(tl.float64), tl.load(P2 + c * STEPS + STEPS - 1).to(tl.float64)
        first, last = clamp_exp(log_first), clamp_exp(log_last)
        fr, fi, dr, di = growth(zr, zi)
        ar, ai = _load(P3, 2 * at, live), _load(P3, 2 * at + 1, live)  # W or B
        if KIND == DSS:
            size = re * re + im * im
            br, bi = times(zr, zi, re / size, -im / size)
        else:
            br, bi = 2 * first * _load(P4, 2 * at, live), 2 * first * _load(P4, 2 * at + 1, live)
        # w = a b f(z)
        abr, abi = times(ar, ai, br, bi)
        afr, afi = times(ar, ai, fr, fi)
        bfr, bfi = times(br, bi, fr, fi)
        gar, gai = against(bfr, bfi, gwr, gwi)
        gbr, gbi = against(afr, afi, gwr, gwi)
        gfr, gfi = against(abr, abi, gwr, gwi)
        tr, ti = against(dr, di, gfr, gfi)
        gzr, gzi = gzr + tr, gzi + ti
        gre, gim, g_first, g_last = re * 0.0, re * 0.0, 0.0, 0.0
        tl.store(O3 + 2 * at, gar.to(tl.float32), mask=live)
        tl.store(O3 + 2 * at + 1, gai.to(tl.float32), mask=live)
        if KIND == DSS:  # b = z / lam
            ur, ui = against(re / size, -im / size, gbr, gbi)
            gzr, gzi = gzr + ur, gzi + ui
            vr, vi = against(br, bi, ur, ui)
            gre, gim = -vr, -vi
        else:  # b = 2 dt C
            cr, ci = _load(P4, 2 * at, live), _load(P4, 2 * at + 1, live)
            tl.store(O4 + 2 * at, (2 * first * gbr).to(tl.float32), mask=live)
            tl.store(O4 + 2 * at + 1, (2 * first * gbi).to(tl.float32), mask=live)
            g_first += tl.sum(tl.where(live, 2 * (cr * gbr + ci * gbi), 0.0), 0)
        gre, gim = gre + first * gzr, gim + last * gzi
        g_first += tl.sum(tl.where(live, re * gzr, 0.0), 0)
        g_last += tl.sum(tl.where(live, im * gzi, 0.0), 0)
        tl.store(O0 + at, (gre * re * moves(decay)).to(tl.float32), mask=live)
        tl.store(O1 + at, gim.to(tl.float32), mask=live)
        if STEPS == 1:
            tl.store(O2 + c, ((g_first + g_last) * first * moves(log_first)).to(tl.float32))
        else:
            tl.store(O2 + c * STEPS, (g_first * first * moves(log_first)).to(tl.float32))
            tl.store(O2 + c * STEPS + 1, (g_last * last * moves(log_last)).to(tl.float32))
