"""The discrete system of one channel of S4 from its layer's parameters, inside a kernel, and gradients; all in float64.

As in `ssm.half_dplr`, on one half of the conjugate pairs (F = 1/(1 - dt/2 lam), <a, b> = sum Re(‾a b)):

    A_bar x = lam_bar x - sum_a U_a 2 <Q_a, x>,    B_bar = dt (F B - sum_a U_a <Q_a, B>)
    lam_bar = 2 F - 1,    Q_a = ‾F P_a,    U_b = dt sum_a F P_a G_ab,    G = M^-1,    M_ab = δ_ab + dt <P_a, F P_b>

for a rank of one or two (of one, P_1 is zero). Vectors are columns (BN, 1), real and imaginary parts separate. Where
||A_bar|| is not below one by a margin, lam_bar and U are scaled by 1 - (margin - left), as in `half_dplr.contract`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.ops.modes.triton_kernels import clamp_exp, moves, times


@triton.jit
def inner(ar, ai, br, bi):  # type: ignore[no-untyped-def]
    """<a, b> of each pair of columns, (1, columns)."""
    return tl.sum(ar * br + ai * bi, 0, keep_dims=True)


@triton.jit
def load_pairs(P, at, live):  # type: ignore[no-untyped-def]
    """The numbers `at` of P, which has real and imaginary parts interleaved."""
    re = tl.load(P + 2 * at, mask=live, other=0.0).to(tl.float64)
    return re, tl.load(P + 2 * at + 1, mask=live, other=0.0).to(tl.float64)


@triton.jit
def load_system(  # type: ignore[no-untyped-def]
    LOG_DECAY, FREQUENCY, P, B, LOG_DT, c, shared, n, i, live, RANK: tl.constexpr
):
    """lam, P_0, P_1, B and dt of channel c, whose system `shared` channels have together."""
    at = (c // shared) * n + i
    re = -clamp_exp(tl.load(LOG_DECAY + at, mask=live, other=0.0).to(tl.float64))
    im = tl.load(FREQUENCY + at, mask=live, other=0.0).to(tl.float64)
    p0r, p0i = load_pairs(P, at * RANK, live)
    if RANK == 2:
        p1r, p1i = load_pairs(P, at * RANK + 1, live)
    else:
        p1r, p1i = p0r * 0.0, p0i * 0.0
    br, bi = load_pairs(B, at, live)
    return re, im, p0r, p0i, p1r, p1i, br, bi, clamp_exp(tl.load(LOG_DT + c).to(tl.float64))


@triton.jit
def resolve(re, im, p0r, p0i, p1r, p1i, dt, live, MARGIN):  # type: ignore[no-untyped-def]
    """F, G and the factor that keeps A_bar a contraction."""
    dr, di = 1.0 - dt / 2 * re, -dt / 2 * im
    size = dr * dr + di * di
    fr, fi = dr / size, -di / size
    x0r, x0i = times(fr, fi, p0r, p0i)
    x1r, x1i = times(fr, fi, p1r, p1i)
    m00, m01 = 1.0 + dt * inner(p0r, p0i, x0r, x0i), dt * inner(p0r, p0i, x1r, x1i)
    m10, m11 = dt * inner(p1r, p1i, x0r, x0i), 1.0 + dt * inner(p1r, p1i, x1r, x1i)
    det = m00 * m11 - m01 * m10
    least, _, size, bend = _measure(re, im, p0r, p0i, p1r, p1i, dt, live)
    scale = 1.0 - tl.maximum(MARGIN - dt * least / (bend * bend), 0.0)
    return fr, fi, m11 / det, -m01 / det, -m10 / det, m00 / det, scale


@triton.jit
def _measure(re, im, p0r, p0i, p1r, p1i, dt, live):  # type: ignore[no-untyped-def]
    """min |Re lam|, max |lam|, a bound of ||A||, and 1 + dt/2 of that."""
    least = tl.min(tl.where(live, -re, float("inf")), 0, keep_dims=True)
    widest = tl.max(tl.where(live, tl.sqrt(re * re + im * im), 0.0), 0, keep_dims=True)
    size = widest + 2 * (inner(p0r, p0i, p0r, p0i) + inner(p1r, p1i, p1r, p1i))
    return least, widest, size, 1.0 + dt / 2 * size


@triton.jit
def _release(re, im, p0r, p0i, p1r, p1i, dt, live, g_scale, MARGIN):  # type: ignore[no-untyped-def]
    """The gradients of lam, |P|² and dt through the factor of `resolve`; zero where it is one."""
    least, widest, size, bend = _measure(re, im, p0r, p0i, p1r, p1i, dt, live)
    unit = 1.0 / (bend * bend)
    g = tl.where(dt * least * unit <= MARGIN, g_scale, 0.0)
    g_size = -g * dt * dt * least * unit / bend
    g_dt = g * least * unit * (1.0 - dt * size / bend)
    lowest, highest = (-re == least) & live, (tl.sqrt(re * re + im * im) == widest) & live
    low = tl.where(lowest, 1.0, 0.0).to(tl.float64)
    high = tl.where(highest & (widest > 0.0), 1.0, 0.0).to(tl.float64)
    out = g_size * high / (tl.maximum(tl.sum(high, 0, keep_dims=True), 1.0) * tl.where(widest > 0.0, widest, 1.0))
    down = g * dt * unit * low / tl.sum(low, 0, keep_dims=True)
    return out * re - down, out * im, 4 * g_size, g_dt


@triton.jit
def mix(fr, fi, p0r, p0i, p1r, p1i, a, b, dt):  # type: ignore[no-untyped-def]
    """dt F (a P_0 + b P_1)."""
    return times(fr * dt, fi * dt, a * p0r + b * p1r, a * p0i + b * p1i)


@triton.jit
def enter(fr, fi, br, bi, u0r, u0i, u1r, u1i, q0r, q0i, q1r, q1i):  # type: ignore[no-untyped-def]
    """B_bar / dt, <Q_0, B> and <Q_1, B>."""
    xr, xi = times(fr, fi, br, bi)
    s0, s1 = inner(q0r, q0i, br, bi), inner(q1r, q1i, br, bi)
    return xr - u0r * s0 - u1r * s1, xi - u0i * s0 - u1i * s1, s0, s1


@triton.jit
def store_slopes(  # type: ignore[no-untyped-def]
    G_DECAY, G_FREQUENCY, G_P, G_B, G_DT, LOG_DECAY, LOG_DT, c, shared, n, row, i, live,
    re, im, p0r, p0i, p1r, p1i, br, bi, dt, fr, fi, g00, g01, g10, g11, scale,
    glr, gli, gu0r, gu0i, gu1r, gu1i, gq0r, gq0i, gq1r, gq1i, gbr, gbi, MARGIN, RANK: tl.constexpr,
):  # fmt: skip
    """From the gradients of lam_bar, U, Q and B_bar to those of the parameters, a row of `row` numbers per channel.

    A gradient of a complex number z is ∂z with dL = Re(‾∂z dz): that of a in a b is ‾b ∂(a b).
    """
    u0r, u0i = mix(fr, fi, p0r, p0i, p1r, p1i, g00, g10, dt)
    u1r, u1i = mix(fr, fi, p0r, p0i, p1r, p1i, g01, g11, dt)
    q0r, q0i = times(fr, -fi, p0r, p0i)
    q1r, q1i = times(fr, -fi, p1r, p1i)
    g_scale = inner(2 * fr - 1.0, 2 * fi, glr, gli)
    g_scale += inner(u0r, u0i, gu0r, gu0i) + inner(u1r, u1i, gu1r, gu1i)
    ger, gei, g_square, g_dt = _release(re, im, p0r, p0i, p1r, p1i, dt, live, g_scale, MARGIN)
    wr, wi, s0, s1 = enter(fr, fi, br, bi, u0r, u0i, u1r, u1i, q0r, q0i, q1r, q1i)
    gu0r, gu0i, gu1r, gu1i = gu0r * scale, gu0i * scale, gu1r * scale, gu1i * scale
    g_dt += inner(wr, wi, gbr, gbi)
    hr, hi = dt * gbr, dt * gbi  # gradient of B_bar / dt
    gfr, gfi = times(hr, hi, br, -bi)
    gbr, gbi = times(hr, hi, fr, -fi)
    gu0r, gu0i, gu1r, gu1i = gu0r - hr * s0, gu0i - hi * s0, gu1r - hr * s1, gu1i - hi * s1
    gs0, gs1 = -inner(u0r, u0i, hr, hi), -inner(u1r, u1i, hr, hi)
    gbr, gbi = gbr + gs0 * q0r + gs1 * q1r, gbi + gs0 * q0i + gs1 * q1i
    gq0r, gq0i, gq1r, gq1i = gq0r + gs0 * br, gq0i + gs0 * bi, gq1r + gs1 * br, gq1i + gs1 * bi
    # U_b = dt sum_a X_a G_ab with X_a = F P_a
    x0r, x0i = times(fr, fi, p0r, p0i)
    x1r, x1i = times(fr, fi, p1r, p1i)
    h00, h01 = inner(x0r, x0i, gu0r, gu0i), inner(x0r, x0i, gu1r, gu1i)
    h10, h11 = inner(x1r, x1i, gu0r, gu0i), inner(x1r, x1i, gu1r, gu1i)
    g_dt += h00 * g00 + h01 * g01 + h10 * g10 + h11 * g11
    gx0r, gx0i = dt * (gu0r * g00 + gu1r * g01), dt * (gu0i * g00 + gu1i * g01)
    gx1r, gx1i = dt * (gu0r * g10 + gu1r * g11), dt * (gu0i * g10 + gu1i * g11)
    # ∂M = -G' ∂G G', with ∂G = dt h
    a00, a01 = g00 * h00 + g10 * h10, g00 * h01 + g10 * h11
    a10, a11 = g01 * h00 + g11 * h10, g01 * h01 + g11 * h11
    m00, m01 = -dt * (a00 * g00 + a01 * g01), -dt * (a00 * g10 + a01 * g11)
    m10, m11 = -dt * (a10 * g00 + a11 * g01), -dt * (a10 * g10 + a11 * g11)
    g_dt += m00 * inner(p0r, p0i, x0r, x0i) + m01 * inner(p0r, p0i, x1r, x1i)
    g_dt += m10 * inner(p1r, p1i, x0r, x0i) + m11 * inner(p1r, p1i, x1r, x1i)
    gp0r, gp0i = dt * (m00 * x0r + m01 * x1r) + g_square * p0r, dt * (m00 * x0i + m01 * x1i) + g_square * p0i
    gp1r, gp1i = dt * (m10 * x0r + m11 * x1r) + g_square * p1r, dt * (m10 * x0i + m11 * x1i) + g_square * p1i
    gx0r, gx0i = gx0r + dt * (m00 * p0r + m10 * p1r), gx0i + dt * (m00 * p0i + m10 * p1i)
    gx1r, gx1i = gx1r + dt * (m01 * p0r + m11 * p1r), gx1i + dt * (m01 * p0i + m11 * p1i)
    # X_a = F P_a, Q_a = ‾F P_a
    gp0r, gp0i, gfr, gfi = _part(gp0r, gp0i, gfr, gfi, gx0r, gx0i, gq0r, gq0i, fr, fi, p0r, p0i)
    gp1r, gp1i, gfr, gfi = _part(gp1r, gp1i, gfr, gfi, gx1r, gx1i, gq1r, gq1i, fr, fi, p1r, p1i)
    gfr, gfi = gfr + 2 * scale * glr, gfi + 2 * scale * gli
    # dF = F² (dt/2 dlam + lam/2 d dt)
    f2r, f2i = times(fr, fi, fr, fi)
    hr, hi = times(f2r, -f2i, gfr, gfi)
    g_dt += inner(re / 2, im / 2, hr, hi)
    at = c * row + i
    decay = tl.load(LOG_DECAY + (c // shared) * n + i, mask=live, other=0.0).to(tl.float64)
    tl.store(G_DECAY + at, ((dt / 2 * hr + ger) * re * moves(decay)).to(tl.float32), mask=live)
    tl.store(G_FREQUENCY + at, (dt / 2 * hi + gei).to(tl.float32), mask=live)
    store_pairs(G_P + c * row, i * RANK, gp0r, gp0i, live)
    if RANK == 2:
        store_pairs(G_P + c * row, i * RANK + 1, gp1r, gp1i, live)
    store_pairs(G_B + c * row, i, gbr, gbi, live)
    log_dt = tl.load(LOG_DT + c).to(tl.float64)
    one = tl.arange(0, 1)[:, None]
    tl.store(G_DT + c + one, (g_dt * dt * moves(log_dt)).to(tl.float32))


@triton.jit
def _part(gpr, gpi, gfr, gfi, gxr, gxi, gqr, gqi, fr, fi, pr, pi):  # type: ignore[no-untyped-def]
    """The gradients of P_a and F with those of X_a = F P_a and Q_a = ‾F P_a added."""
    ar, ai = times(gxr, gxi, fr, -fi)
    br, bi = times(gqr, gqi, fr, fi)
    cr, ci = times(gxr, gxi, pr, -pi)
    er, ei = times(gqr, -gqi, pr, pi)
    return gpr + ar + br, gpi + ai + bi, gfr + cr + er, gfi + ci + ei


@triton.jit
def store_pairs(P, at, re, im, live):  # type: ignore[no-untyped-def]
    tl.store(P + 2 * at, re.to(P.dtype.element_ty), mask=live)
    tl.store(P + 2 * at + 1, im.to(P.dtype.element_ty), mask=live)
