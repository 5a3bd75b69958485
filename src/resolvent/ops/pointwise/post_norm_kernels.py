"""The kernels of `post_norm_triton`: all channels of BM columns per program, columns as the rows of its products.

A product's numbers are spread over four lanes per row, so that sums over channels stay within a warp, and tiles are
copied by the tile engine. Other values are added to a product of zeros, to get the same layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOPE = tl.constexpr(0.7998)
CUBE = tl.constexpr(0.0348)


@triton.jit
def _tanh(x, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """UNIT: by the unit of the exponentials, in one instruction, accurate to 2^-11."""
    if UNIT:
        found = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        found = 2 * tl.sigmoid(2 * x) - 1
    return found


@triton.jit
def _sigmoid(x, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    return 0.5 * _tanh(0.5 * x, UNIT) + 0.5


@triton.jit
def _gelu(x, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """x Phi(x) and its slope, Phi(x) as (1 + tanh(x (a + b x²))) / 2: accurate to 3e-4 and 9e-4 with an exact tanh."""
    square = x * x
    h = _tanh(x * (SLOPE + square * CUBE), UNIT)
    half = 0.5 * x
    return half * h + half, half * (1 - h * h) * (SLOPE + square * (3 * CUBE)) + (0.5 * h + 0.5)


@triton.jit
def _shut(x, BM: tl.constexpr, BC: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(BM, BC) as products leave it -> its numbers in the order in which lanes hold them, sixteen to a store."""
    x = x.reshape(BM // (WARPS * 16), WARPS, 2, 8, BC // 64, 8, 4, 2)
    return x.permute(0, 2, 4, 1, 3, 6, 5, 7).reshape(BM * BC)


@triton.jit
def _unshut(x, BM: tl.constexpr, BC: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    x = x.reshape(BM // (WARPS * 16), 2, BC // 64, WARPS, 8, 4, 8, 2)
    return x.permute(0, 3, 1, 4, 2, 6, 5, 7).reshape(BM, BC)


@triton.jit
def _spread(x, nothing, BM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """x (BM, BD) as products leave theirs; `nothing` is a zero hidden from the compiler."""
    zeros, more = tl.full((BM, 16), nothing, tl.float32), tl.full((16, BD), nothing, tl.float32)
    return tl.dot(zeros.to(tl.bfloat16), more.to(tl.bfloat16), x)


@triton.jit
def _along(p, ch):  # type: ignore[no-untyped-def]
    return tl.load(p + ch).to(tl.float32)[None, :]


@triton.jit
def _is_steady(GAMMA, BETA, ch):  # type: ignore[no-untyped-def]
    """Whether unit = (out - beta) / gamma is accurate despite out's rounding."""
    gamma, beta = tl.abs(tl.load(GAMMA + ch).to(tl.float32)), tl.abs(tl.load(BETA + ch).to(tl.float32))
    return (tl.max(beta - gamma) <= 0) & (tl.min(gamma) > 1e-6)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    Y, y_c, y_m, R, W, BIAS, GAMMA, BETA, SCALE, WA, BA, OUT, KEPT, CODES, m, eps, nothing,
    d: tl.constexpr, c: tl.constexpr, NARROW: tl.constexpr, GELU: tl.constexpr, KEEP: tl.constexpr, QUICK: tl.constexpr,
    BM: tl.constexpr, AHEAD: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """OUT (d, m), or with KEEP (2 d, m), then unit, which is written only where it cannot be recovered from out.

    KEPT (m + 2 d): 1/deviation, then the factor and summand that convert a stored row into unit. Y, R and OUT are
    tensor descriptors, with NARROW Y is (c, m) in float32. W None: y unchanged. CODES: derivatives of the second GELU.
    """
    ch = tl.arange(0, d)
    low: tl.constexpr = OUT.dtype
    if W is not None and not NARROW:
        w = tl.load(W + ch[:, None] + ch[None, :] * d)  # transposed
    if WA is not None:
        wa = tl.load(WA + ch[:, None] + ch[None, :] * d)
    steady = _is_steady(GAMMA, BETA, ch)
    if KEEP:
        gamma, beta = tl.load(GAMMA + ch).to(tl.float32), tl.load(BETA + ch).to(tl.float32)
        tl.store(KEPT + m + ch, tl.where(steady, 1 / gamma, 1.0))
        tl.store(KEPT + m + d + ch, tl.where(steady, -beta / gamma, 0.0))
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM), tl.num_programs(0), num_stages=AHEAD):
        first = tile * BM
        cols = first + tl.arange(0, BM)
        if NARROW:
            z = _spread(tl.zeros((BM, d), tl.float32), nothing, BM, d) + _along(BIAS, ch)
            for k in tl.static_range(c):
                one = tl.load(Y + k * y_c + cols.to(tl.int64) * y_m, mask=cols < m, other=0.0).to(tl.float32)
                z += one[:, None] * tl.load(W + ch * c + k)[None, :]
        else:
            v = Y.load([0, first]).T
            r = R.load([0, first]).T
            if WA is not None:
                a = tl.dot(v, wa) + _along(BA, ch)
                v = (_sigmoid(a, QUICK) * v.to(tl.float32)).to(low)
            if GELU:
                bent, _ = _gelu(v.to(tl.float32), QUICK)
                v = bent.to(low)
            if W is None:  # what the compiler leaves out may not stand in a ternary
                z = _spread(v.to(tl.float32), nothing, BM, d)
            if W is not None:
                z = tl.dot(v, w) + _along(BIAS, ch)
            if GELU:
                z, slope = _gelu(z, QUICK)
                if KEEP:  # a byte in steps of 1/200: adding 2^23 puts the nearest integer into the last bits
                    code = (slope * 200.0 + 8388635.0).to(tl.int32, bitcast=True).to(tl.uint8)
                    tl.store(CODES + first * d + tl.arange(0, BM * d), _shut(code, BM, d, WARPS))
            z += r.to(tl.float32) if SCALE is None else r.to(tl.float32) * _along(SCALE, ch)
        z -= (tl.sum(z, 1) * (1.0 / d))[:, None]
        rstd = tl.rsqrt(tl.sum(z * z, 1) * (1.0 / d) + eps)
        z = z * rstd[:, None]
        OUT.store([0, first], (z * _along(GAMMA, ch) + _along(BETA, ch)).to(low).T)
        if KEEP:
            if not steady:
                OUT.store([d, first], z.to(low).T)
            tl.store(KEPT + cols, rstd, mask=cols < m)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, g_d, g_b, OUT, KEPT, CODES, Y, W, GAMMA, BETA, SCALE, WA, BA, GZ, GY, gy_c, gy_m, m, l, b, nothing,
    d: tl.constexpr, c: tl.constexpr, NARROW: tl.constexpr, GELU: tl.constexpr, QUICK: tl.constexpr,
    FLAT: tl.constexpr, WHOLE: tl.constexpr, BM: tl.constexpr, AHEAD: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """GZ, the gradient of the skip, and GY from G: a descriptor, or without FLAT one value for all steps of each of b
    sequences, of which a tile spans at most two, WHOLE: one. W None: GY is the gradient without its factor SCALE.
    """
    ch = tl.arange(0, d)
    low: tl.constexpr = OUT.dtype
    if W is not None and not NARROW:
        w = tl.load(W + ch[:, None] * d + ch[None, :])
    if WA is not None:
        wa = tl.load(WA + ch[:, None] + ch[None, :] * d)
        turned = tl.load(WA + ch[:, None] * d + ch[None, :])
    where = tl.where(_is_steady(GAMMA, BETA, ch), 0, d)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM), tl.num_programs(0), num_stages=AHEAD):
        first = tile * BM
        cols = first + tl.arange(0, BM)
        if FLAT:
            g = G.load([0, first]).T.to(tl.float32)
        o = OUT.load([where, first]).T.to(tl.float32)
        if WA is not None:
            y = Y.load([0, first]).T
            a = tl.dot(y, wa) + _along(BA, ch)
        o = _spread(o, nothing, BM, d)
        if not FLAT:
            sequence = first // l
            g = _along(G + sequence * g_b, ch * g_d)
            if not WHOLE:
                after = _along(G + tl.minimum(sequence + 1, b - 1) * g_b, ch * g_d)
                g = _spread(tl.where((cols < (sequence + 1) * l)[:, None], g, after), nothing, BM, d)
        rstd = tl.load(KEPT + cols, mask=cols < m, other=0.0)
        unit = o * _along(KEPT + m, ch) + _along(KEPT + m + d, ch)
        gu = g * _along(GAMMA, ch)
        mean, along = tl.sum(gu, 1) * (1.0 / d), tl.sum(gu * unit, 1) * (1.0 / d)
        gz = (gu - mean[:, None] - unit * along[:, None]) * rstd[:, None]
        if not NARROW:
            skip = gz if SCALE is None else gz * _along(SCALE, ch)
            GZ.store([0, first], skip.to(low).T)
        if NARROW:
            for k in tl.static_range(c):
                one = tl.sum(gz * tl.load(W + ch * c + k)[None, :], 1)
                tl.store(GY + k * gy_c + cols.to(tl.int64) * gy_m, one, mask=cols < m)
        elif W is None:
            GY.store([0, first], gz.to(low).T)
        else:
            if GELU:
                y = Y.load([0, first]).T
                code = _unshut(tl.load(CODES + first * d + tl.arange(0, BM * d)), BM, d, WARPS)
                # the byte among the digits of a number between 1 and 1.008: one multiply-add gives (code - 27) / 200
                gz *= ((code.to(tl.int32) << 8) | 0x3F800000).to(tl.float32, bitcast=True) * 163.84 - 163.975
            gv = tl.dot(gz.to(low), w)
            if GELU:
                _, slope = _gelu(y.to(tl.float32), QUICK)
                gv = gv * slope
            if WA is not None:
                s = _sigmoid(a, QUICK)
                gv = tl.dot((gv * y.to(tl.float32) * (s - s * s)).to(low), turned, gv * s)
            GY.store([0, first], gv.to(low).T)
