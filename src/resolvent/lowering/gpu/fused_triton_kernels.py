"""The two kernels of `fused_triton`: all channels of BM columns per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normal(x):  # type: ignore[no-untyped-def]
    """Phi(x) as sigmoid(p(x)), and p'(x); x Phi(x) is accurate to 3e-5, its derivative to 1.1e-4, 1/20 of bf16's step.

    One exponential, where erf takes some thirty instructions. Beyond 8, where Phi is 0 or 1, p continues linearly.
    The square of a reciprocal root takes two instructions, a quotient eight.
    """
    square = tl.minimum(x * x, 64.0)
    below = x * (-2.3011213392841454 + square * (-0.10677572492226899 + square * 0.0010142632210668745))  # -p / ln 2
    root = tl.rsqrt(1 + tl.exp2(below))
    return root * root, 1.5950157684511308 + square * (0.22203387804634512 - square * 0.003515168460140763)


@triton.jit
def _activate(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """act(x) and act'(x)."""
    y, slope = x, x * 0 + 1
    if KIND == 1:
        s = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        y, slope = x * s, s + x * (0.3989422804014327 * tl.exp(-0.5 * x * x))
    elif KIND == 2:
        s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        y = x * s
        slope = s + y * (1 - s) * (1.5957691216057308 * (1 + 0.134145 * x * x))
    elif KIND == 3:
        s = tl.sigmoid(x)
        y = x * s
        slope = s + y * (1 - s)
    elif KIND == 4:
        y, slope = tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)
    elif KIND == 5:
        y = tl.sigmoid(x)
        slope = y * (1 - y)
    elif KIND == 6:
        y = 2 * tl.sigmoid(2 * x) - 1
        slope = 1 - y * y
    elif KIND == 7:
        s, p = _normal(x)
        y = x * s
        slope = s + (y - y * s) * p
    return y, slope


@triton.jit
def _act(x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    y, _ = _activate(x, KIND)
    return y


@triton.jit
def _slope(g, x, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """g act'(x)."""
    if KIND > 0:
        _, slope = _activate(x, KIND)
        g = g * slope
    return g


@triton.jit
def _keep(place, slope, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store unchanged, or as a byte in steps of 1/200: slopes are between -0.13 and 1.13, those of a sigmoid below 1/4.

    Adding 2^23 puts the nearest integer into the last bits; conversions run at an eighth of the rate.
    """
    if place.dtype.element_ty == tl.uint8:
        scale: tl.constexpr = 800.0 if KIND == 5 else 200.0
        slope = (slope * scale + 8388635.0).to(tl.int32, bitcast=True)  # 2^23 + 27
    tl.store(place, slope.to(place.dtype.element_ty), mask=inside)


@triton.jit
def _load_kept(place, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    slope = tl.load(place, mask=inside, other=0)
    if place.dtype.element_ty == tl.uint8:
        scale: tl.constexpr = 1 / 800.0 if KIND == 5 else 1 / 200.0
        slope = ((slope.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388635.0) * scale
    return slope


@triton.jit
def _matrix(W, rows, cols, step_r, step_c, n_r, n_c):  # type: ignore[no-untyped-def]
    inside = (rows[:, None] < n_r) & (cols[None, :] < n_c)
    return tl.load(W + rows[:, None] * step_r + cols[None, :] * step_c, mask=inside, other=0.0)


@triton.jit
def _vector(p, rows, n):  # type: ignore[no-untyped-def]
    return tl.load(p + rows, mask=rows < n, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _total(x):  # type: ignore[no-untyped-def]
    """Sums of rows, bitwise identical in every lane of a row.

    If a lane holds one number of a row, and that is a product, the compiler would fuse it (FMA) with another lane's
    value without rounding, while the other lane gets the rounded one. With a zero added, both use the same sum.
    """
    return tl.sum(x + 0.0, 1)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    Y, y_c, y_m, R, W, BIAS, GAMMA, BETA, WA, BA, OUT, UNIT, RSTD, FIRST, LAST, m, l, eps,
    d: tl.constexpr, c: tl.constexpr,
    ACT: tl.constexpr, FINAL: tl.constexpr, SIGMA: tl.constexpr, ADS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_R: tl.constexpr, KEEP: tl.constexpr, NARROW: tl.constexpr,
    BD: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """NARROW: so few input channels that an explicit sum is faster than a matrix product."""
    rows, ch = tl.arange(0, BD), tl.arange(0, BC)
    low = W.dtype.element_ty
    if not NARROW:
        w = _matrix(W, rows, ch, c, 1, d, c)
    if ADS:
        wa = _matrix(WA, ch, ch, c, 1, c, c)
        ba = _vector(BA, ch, c)
    bias, gamma, beta = _vector(BIAS, rows, d), _vector(GAMMA, rows, d), _vector(BETA, rows, d)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM), tl.num_programs(0), num_stages=AHEAD):
        cols = (tile * BM + tl.arange(0, BM)).to(tl.int64)
        live = cols < m
        at = rows.to(tl.int64)[:, None] * m + cols[None, :]
        inside = (rows[:, None] < d) & live[None, :]
        seen = (ch[:, None] < c) & live[None, :]
        if HAS_R:
            r = tl.load(R + at, mask=inside, other=0.0)
        if NARROW:
            z = tl.zeros((BD, BM), dtype=tl.float32) + bias
            for k in tl.static_range(c):
                column = tl.load(W + rows * c + k, mask=rows < d, other=0.0).to(tl.float32)
                one = tl.load(Y + k * y_c + cols * y_m, mask=live, other=0.0).to(tl.float32)
                z += column[:, None] * one[None, :]
        else:
            y = tl.load(Y + ch.to(tl.int64)[:, None] * y_c + cols[None, :] * y_m, mask=seen, other=0.0).to(low)
            v = y
        if ADS:
            a = tl.dot(wa, y, input_precision=PRECISION) + ba
            v = (_act(a, SIGMA) * y.to(tl.float32)).to(low)
        if ACT > 0:
            v, slope = _activate(v.to(tl.float32), ACT)
            v = v.to(low)
            if KEEP and not ADS:
                _keep(FIRST + ch.to(tl.int64)[:, None] * m + cols[None, :], slope, seen, ACT)
        if not NARROW:
            z = tl.dot(w, v, input_precision=PRECISION) + bias
        if FINAL > 0:
            z, slope = _activate(z, FINAL)
            if KEEP and not ADS:
                _keep(LAST + at, slope, inside, FINAL)
        if HAS_R:
            z += r.to(tl.float32)
        if d < BD:
            z = tl.where(rows[:, None] < d, z, 0.0)
        z -= tl.sum(z, 0)[None, :] * (1.0 / d)
        if d < BD:
            z = tl.where(rows[:, None] < d, z, 0.0)
        rstd = tl.rsqrt(tl.sum(z * z, 0) * (1.0 / d) + eps)
        z = z * rstd[None, :]
        tl.store(OUT + at, (z * gamma + beta).to(OUT.dtype.element_ty), mask=inside)
        if KEEP:
            tl.store(UNIT + at, z.to(UNIT.dtype.element_ty), mask=inside)
            tl.store(RSTD + cols, rstd, mask=live)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, g_d, g_b, UNIT, RSTD, FIRST, LAST, Y, y_c, y_m, W, BIAS, GAMMA, WA, BA, GZ, GY, gy_c, gy_m, GW, GA, SUMS, m, l,
    d: tl.constexpr, c: tl.constexpr,
    ACT: tl.constexpr, FINAL: tl.constexpr, SIGMA: tl.constexpr, ADS: tl.constexpr, PRECISION: tl.constexpr,
    FLAT: tl.constexpr, LEARN: tl.constexpr, KEEP_Z: tl.constexpr, NARROW: tl.constexpr,
    BD: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    rows, ch = tl.arange(0, BD), tl.arange(0, BC)
    low = W.dtype.element_ty
    if not NARROW:
        turned = _matrix(W, ch, rows, 1, c, c, d)
    if ADS and FINAL > 0:
        w = _matrix(W, rows, ch, c, 1, d, c)
        bias = _vector(BIAS, rows, d)
    if ADS:
        wa, turned_a = _matrix(WA, ch, ch, c, 1, c, c), _matrix(WA, ch, ch, 1, c, c, c)
        ba = _vector(BA, ch, c)
    gamma = _vector(GAMMA, rows, d)
    if LEARN:
        g_gamma, g_beta = tl.zeros((BD,), dtype=tl.float32), tl.zeros((BD,), dtype=tl.float32)
        g_bias, g_ba = tl.zeros((BD,), dtype=tl.float32), tl.zeros((BC,), dtype=tl.float32)
    parts = tl.cdiv(m, BM) if FLAT else tl.cdiv(l, BM)
    for tile in tl.range(tl.program_id(0), parts if FLAT else (m // l) * parts, tl.num_programs(0), num_stages=AHEAD):
        if FLAT:
            cols = (tile * BM + tl.arange(0, BM)).to(tl.int64)
            live = cols < m
        else:  # a tile has steps of one sequence
            sequence = tile // parts
            steps = (tile % parts) * BM + tl.arange(0, BM)
            cols = sequence.to(tl.int64) * l + steps
            live = steps < l
        at = rows.to(tl.int64)[:, None] * m + cols[None, :]
        inside = (rows[:, None] < d) & live[None, :]
        seen = (ch[:, None] < c) & live[None, :]
        unit = tl.load(UNIT + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + cols, mask=live, other=0.0)
        if FLAT:
            g = tl.load(G + at, mask=inside, other=0.0).to(tl.float32)
        else:  # the same at every step of a sequence
            one = tl.load(G + sequence * g_b + rows.to(tl.int64) * g_d, mask=rows < d, other=0.0).to(tl.float32)
            g = tl.where(live[None, :], one[:, None], 0.0)
        if LEARN:
            g_gamma += _total(g * unit)
            g_beta += _total(g)
        gu = g * gamma
        mean, along = tl.sum(gu, 0) * (1.0 / d), tl.sum(gu * unit, 0) * (1.0 / d)
        gz = (gu - mean[None, :] - unit * along[None, :]) * rstd[None, :]
        if d < BD:
            gz = tl.where(rows[:, None] < d, gz, 0.0)
        if KEEP_Z:
            tl.store(GZ + at, gz.to(GZ.dtype.element_ty), mask=inside)
        if ADS:  # recomputes y -> u, because the gradient of v needs a and y as well
            y = tl.load(Y + ch.to(tl.int64)[:, None] * y_c + cols[None, :] * y_m, mask=seen, other=0.0).to(low)
            a = tl.dot(wa, y, input_precision=PRECISION) + ba
            s = _act(a, SIGMA)
            v = (s * y.to(tl.float32)).to(low)
            if FINAL > 0:
                after = _act(v.to(tl.float32), ACT).to(low)
                gz = _slope(gz, tl.dot(w, after, input_precision=PRECISION) + bias, FINAL)
        elif FINAL > 0:
            gz = gz * _load_kept(LAST + at, inside, FINAL)
        if LEARN and FINAL > 0:
            tl.store(GW + at, gz.to(GW.dtype.element_ty), mask=inside)
        if LEARN:
            g_bias += _total(gz)
        if NARROW:
            for k in tl.static_range(c):
                column = tl.load(W + rows * c + k, mask=rows < d, other=0.0).to(tl.float32)
                one = tl.sum(column[:, None] * gz, 0)
                tl.store(GY + k * gy_c + cols * gy_m, one.to(GY.dtype.element_ty), mask=live)
        else:
            gv = tl.dot(turned, gz.to(low), input_precision=PRECISION)
        if ADS:
            gv = _slope(gv, v.to(tl.float32), ACT)
        elif ACT > 0:
            gv = gv * _load_kept(FIRST + ch.to(tl.int64)[:, None] * m + cols[None, :], seen, ACT)
        if ADS:
            ga = _slope(gv * y.to(tl.float32), a, SIGMA)
            gv = gv * s + tl.dot(turned_a, ga.to(low), input_precision=PRECISION)
            if LEARN:
                g_ba += _total(ga)
                full = ch.to(tl.int64)[:, None] * m + cols[None, :]
                tl.store(GA + full, ga.to(GA.dtype.element_ty), mask=seen)
        if not NARROW:
            where = GY + ch.to(tl.int64)[:, None] * gy_c + cols[None, :] * gy_m
            tl.store(where, gv.to(GY.dtype.element_ty), mask=seen)
    if LEARN:
        place = SUMS + tl.program_id(0).to(tl.int64) * 4 * d
        tl.store(place + rows, g_gamma, mask=rows < d)
        tl.store(place + d + rows, g_beta, mask=rows < d)
        tl.store(place + 2 * d + rows, g_bias, mask=rows < d)
        if ADS:
            tl.store(place + 3 * d + ch, g_ba, mask=ch < c)
