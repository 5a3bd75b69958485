"""The kernels of `gated_block_triton`. Columns are the steps of all sequences: m in total."""

from __future__ import annotations

import triton
import triton.language as tl

from resolvent.ops.pointwise.biased_silu_triton import one, place, read


@triton.jit
def _slope(x, share):  # type: ignore[no-untyped-def]
    """silu'(x), share = sigmoid(x)."""
    return share * (1 + x * (1 - share))


@triton.jit
def _row(P, rows, d):  # type: ignore[no-untyped-def]
    return tl.load(P + rows, mask=rows < d, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _tile(rows, cols, d, m):  # type: ignore[no-untyped-def]
    """The offsets of channels `rows` and columns `cols`, and which of them exist."""
    return rows.to(tl.int64)[:, None] * m + cols[None, :], (rows < d)[:, None] & (cols < m)[None, :]


@triton.jit
def _parts(U, H, W, X, BIAS_U, BIAS_H, at, inside, rows, d):  # type: ignore[no-untyped-def]
    h = read(H, at, inside) + read(W, at, inside) + _row(BIAS_H, rows, d)
    return read(X, at, inside), h, read(U, at, inside) + _row(BIAS_U, rows, d)


@triton.jit
def project_kernel(Z, BIAS, GAMMA, BETA, Q, K, m, n, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    c, at, live = place(m, BM)
    z = read(Z, at, live) + one(BIAS, c)
    z *= tl.sigmoid(z)
    q = z * one(GAMMA, c) + one(BETA, c)
    k = z * one(GAMMA, n + c) + one(BETA, n + c)
    tl.store(Q + at, q.to(Q.dtype.element_ty), mask=live)
    tl.store(K + at, k.to(K.dtype.element_ty), mask=live)


@triton.jit
def project_backward_kernel(  # type: ignore[no-untyped-def]
    GQ, GK, REST, Z, BIAS, GAMMA, BETA, GZ, SUMS, l, n, LEARN: tl.constexpr, BL: tl.constexpr
):
    """One channel of one sequence. A constant added to all keys changes no weight: exactly, the gradient of scores sums
    to zero along its rows, and that of keys over all of them. The remaining rounding error is subtracted."""
    s, c, j = tl.program_id(0), tl.program_id(1), tl.arange(0, BL)
    live = j < l
    at = (c * tl.num_programs(0) + s).to(tl.int64) * l + j
    z = read(Z, at, live) + one(BIAS, c)
    share = tl.sigmoid(z)
    unit = tl.where(live, z * share, 0.0)
    middle = tl.sum(unit, 0) / l * one(GAMMA, n + c) + one(BETA, n + c)  # of the keys
    gq = read(GQ, at, live) - read(REST, s * l + j, live) * middle
    gk = read(GK, at, live)
    gk = tl.where(live, gk - tl.sum(gk, 0) / l, 0.0)
    g = (gq * one(GAMMA, c) + gk * one(GAMMA, n + c)) * _slope(z, share)
    tl.store(GZ + at, g.to(GZ.dtype.element_ty), mask=live)
    if LEARN:
        b = tl.num_programs(0)
        sums, row = SUMS + c * b + s, n * b
        tl.store(sums, tl.sum(tl.where(live, g, 0.0), 0))
        tl.store(sums + row, tl.sum(gq * unit, 0))
        tl.store(sums + 2 * row, tl.sum(gk * unit, 0))
        tl.store(sums + 3 * row, tl.sum(gq, 0))
        tl.store(sums + 4 * row, tl.sum(gk, 0))


@triton.jit
def open_kernel(R, O, BIAS, OUT, m, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    c, at, live = place(m, BM)
    r = read(R, at, live) + one(BIAS, c)
    o = read(O, at, live)
    tl.store(OUT + at, (r * tl.sigmoid(r) * o).to(OUT.dtype.element_ty), mask=live)


@triton.jit
def open_backward_kernel(  # type: ignore[no-untyped-def]
    G, R, O, BIAS, GR, GO, PRODUCTS, SUMS, m, n, LEARN: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr
):
    """All n channels of BM columns, BC at a time."""
    cols = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), dtype=tl.float32)
    for first in tl.range(0, n, BC):
        rows = first + tl.arange(0, BC)
        at, inside = _tile(rows, cols, n, m)
        g = read(G, at, inside)
        r = read(R, at, inside) + _row(BIAS, rows, n)
        o = read(O, at, inside)
        share = tl.sigmoid(r)
        go = (g * r * share).to(GO.dtype.element_ty)
        gr = g * o * _slope(r, share)
        tl.store(GO + at, go, mask=inside)
        tl.store(GR + at, gr.to(GR.dtype.element_ty), mask=inside)
        total += tl.sum(go.to(tl.float32) * o, 0)
        if LEARN:
            tl.store(SUMS + tl.program_id(0).to(tl.int64) * n + rows, tl.sum(gr, 1), mask=rows < n)
    tl.store(PRODUCTS + cols, total, mask=cols < m)


@triton.jit
def slope_kernel(  # type: ignore[no-untyped-def]
    G, V, P, PRODUCTS, OUT, SUMS, l, n, WHOLE: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """One tile of one sequence's scores; G and V (b, n, l) are tensor descriptors, SUMS (b, tiles, l) of its rows."""
    tiles = tl.cdiv(l, BT)
    pid = tl.program_id(0)
    s, rest = pid // (tiles * tiles), pid % (tiles * tiles)
    first_i, first_j = rest // tiles * BT, rest % tiles * BT
    i, j = first_i + tl.arange(0, BT), first_j + tl.arange(0, BT)
    at = (s.to(tl.int64) * l + i)[:, None] * l + j[None, :]
    acc = tl.zeros((BT, BT), dtype=tl.float32)
    for k in tl.range(0, n, BK):
        g = G.load([s, k, first_i]).reshape(BK, BT)
        acc = tl.dot(g.T, V.load([s, k, first_j]).reshape(BK, BT), acc)
    place = SUMS + (s * tiles + first_j // BT) * l + i
    if WHOLE:
        gs = tl.load(P + at).to(tl.float32) * (acc - tl.load(PRODUCTS + s * l + i)[:, None])
        tl.store(OUT + at, gs.to(OUT.dtype.element_ty))
        tl.store(place, tl.sum(gs, 1))
    else:
        live = (i < l)[:, None] & (j < l)[None, :]
        gs = read(P, at, live) * (acc - tl.load(PRODUCTS + s * l + i, mask=i < l, other=0.0)[:, None])
        tl.store(OUT + at, gs.to(OUT.dtype.element_ty), mask=live)
        tl.store(place, tl.sum(gs, 1), mask=i < l)


@triton.jit
def close_kernel(  # type: ignore[no-untyped-def]
    U, H, W, X, BIAS_U, BIAS_H, GAMMA, BETA, OUT, MEAN, RSTD, m, eps, d: tl.constexpr,
    NORM: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    rows, cols = tl.arange(0, BD), tl.program_id(0) * BM + tl.arange(0, BM)
    at, inside = _tile(rows, cols, d, m)
    x, h, u = _parts(U, H, W, X, BIAS_U, BIAS_H, at, inside, rows, d)
    z = x + tl.sigmoid(u) * (h * tl.sigmoid(h) - x)
    if NORM:
        if d < BD:
            z = tl.where(rows[:, None] < d, z, 0.0)
        mean = tl.sum(z, 0) / d
        z -= mean[None, :]
        if d < BD:
            z = tl.where(rows[:, None] < d, z, 0.0)
        rstd = 1 / tl.sqrt(tl.sum(z * z, 0) / d + eps)
        z = z * rstd[None, :] * _row(GAMMA, rows, d) + _row(BETA, rows, d)
        tl.store(MEAN + cols, mean, mask=cols < m)
        tl.store(RSTD + cols, rstd, mask=cols < m)
    tl.store(OUT + at, z.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def close_backward_kernel(  # type: ignore[no-untyped-def]
    G, U, H, W, X, BIAS_U, BIAS_H, GAMMA, MEAN, RSTD, GU, GH, GX, SUMS, m, d: tl.constexpr,
    NORM: tl.constexpr, LEARN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    rows, cols = tl.arange(0, BD), tl.program_id(0) * BM + tl.arange(0, BM)
    at, inside = _tile(rows, cols, d, m)
    sums = SUMS + tl.program_id(0).to(tl.int64) * 4 * d + rows
    x, h, u = _parts(U, H, W, X, BIAS_U, BIAS_H, at, inside, rows, d)
    g = read(G, at, inside)
    share, own = tl.sigmoid(u), tl.sigmoid(h)
    rise = h * own - x
    if NORM:
        mean = tl.load(MEAN + cols, mask=cols < m, other=0.0)
        rstd = tl.load(RSTD + cols, mask=cols < m, other=0.0)
        unit = (x + share * rise - mean[None, :]) * rstd[None, :]
        if LEARN:
            tl.store(sums + 2 * d, tl.sum(g * unit, 1), mask=rows < d)
            tl.store(sums + 3 * d, tl.sum(g, 1), mask=rows < d)
        g *= _row(GAMMA, rows, d)
        g -= tl.sum(g, 0)[None, :] / d + unit * (tl.sum(g * unit, 0)[None, :] / d)
        g *= rstd[None, :]
    gu = g * rise * share * (1 - share)
    gh = g * share * _slope(h, own)
    tl.store(GU + at, gu.to(GU.dtype.element_ty), mask=inside)
    tl.store(GH + at, gh.to(GH.dtype.element_ty), mask=inside)
    tl.store(GX + at, (g * (1 - share)).to(GX.dtype.element_ty), mask=inside)
    if LEARN:
        tl.store(sums, tl.sum(tl.where(inside, gu, 0.0), 1), mask=rows < d)
        tl.store(sums + d, tl.sum(tl.where(inside, gh, 0.0), 1), mask=rows < d)
