"""`skip_norm` as one Triton kernel in each direction: all channels of some columns per program.

A column is one step of one sequence. Strides of channel and column distinguish the two layouts. Sums over columns give
one row per program, which makes their total deterministic, bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.pointwise.skip_norm import Ending
from resolvent.runtime.launch import either, on_device

NUMBERS = 8192  # per tile


def forward(x: Tensor, y: Tensor, w: Ending, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """out, unit (both like x) and 1/deviation of every column."""
    x, y = x.contiguous(), y.contiguous()
    out, unit = torch.empty_like(x), torch.empty_like(x)
    d, m, steps = _sizes(x, axis)
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    rows, columns = _tile(d)
    with on_device(x):
        forward_kernel[(triton.cdiv(m, columns),)](
            x, y, either(w.scale, w.gamma), either(w.shift, w.gamma), w.gamma, w.beta, out, unit, rstd,
            m, *steps, w.eps, d,
            SCALED=w.scale is not None, SHIFTED=w.shift is not None, BD=rows, BM=columns, num_warps=4,
        )  # fmt: skip
    return out, unit, rstd


def backward(
    g: Tensor, kept: tuple[Tensor, Tensor, Tensor | None], w: Ending, axis: int, learn: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """∂x, ∂y and with `learn` those of gamma, beta, scale and shift as rows (4, d); `kept` is unit, rstd and x."""
    unit, rstd, x = kept
    g, each, places = _gather(g, axis, _tile(unit.shape[axis])[1])
    gy = torch.empty_like(unit)
    gx = gy if w.scale is None else torch.empty_like(unit)
    d, m, steps = _sizes(unit, axis)
    rows, columns = _tile(d)
    programs = triton.cdiv(m, columns)
    sums = torch.empty((programs, 4, d), dtype=torch.float32, device=g.device) if learn else None
    with on_device(g):
        backward_kernel[(programs,)](
            g, unit, rstd, either(x, unit), either(w.scale, w.gamma), w.gamma, gx, gy, either(sums, rstd),
            m, *steps, each, *places, d, SPREAD=each > 1, SCALED=w.scale is not None, LEARN=learn,
            BD=rows, BM=columns, num_warps=8,
        )  # fmt: skip
    return gx, gy, None if sums is None else sums.sum(0)


def _gather(g: Tensor, axis: int, columns: int) -> tuple[Tensor, int, tuple[int, int]]:
    """g as read by the kernel, the columns per gradient, and its strides: the gradient of a mean over time
    is constant within a sequence, and is not expanded in memory if tiles do not span two sequences."""
    time = 2 if axis == 0 else 1
    if g.dim() == 3 and g.stride(time) == 0 and g.shape[time] > 1 and g.shape[time] % columns == 0:
        narrow = g.select(time, 0).contiguous()
        return narrow, g.shape[time], _sizes(narrow, axis)[2]
    return g.contiguous(), 1, _sizes(g, axis)[2]


def _sizes(x: Tensor, axis: int) -> tuple[int, int, tuple[int, int]]:
    """Channels, columns, and the strides of both in memory."""
    d = x.shape[axis]
    m = x.numel() // d
    return d, m, (m, 1) if axis == 0 else (1, d)


def _tile(d: int) -> tuple[int, int]:
    rows = triton.next_power_of_2(d)
    return rows, max(1, NUMBERS // rows)


@triton.jit
def _along(p, rows, d):  # type: ignore[no-untyped-def]
    return tl.load(p + rows, mask=rows < d, other=0.0).to(tl.float32)[:, None]


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    X, Y, SCALE, SHIFT, GAMMA, BETA, OUT, UNIT, RSTD, m, s_c, s_m, eps, d: tl.constexpr,
    SCALED: tl.constexpr, SHIFTED: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, BD)
    cols = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = (rows < d)[:, None] & (cols < m)[None, :]
    at = rows.to(tl.int64)[:, None] * s_c + cols[None, :] * s_m
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        x *= _along(SCALE, rows, d)
    if SHIFTED:
        z += tl.where(inside, _along(SHIFT, rows, d), 0.0)
    z += x
    z -= tl.sum(z, 0)[None, :] / d
    if d < BD:
        z = tl.where(rows[:, None] < d, z, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(z * z, 0) / d + eps)
    z *= rstd[None, :]
    tl.store(UNIT + at, z.to(UNIT.dtype.element_ty), mask=inside)
    out = z * _along(GAMMA, rows, d) + _along(BETA, rows, d)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(RSTD + cols, rstd, mask=cols < m)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, UNIT, RSTD, X, SCALE, GAMMA, GX, GY, SUMS, m, s_c, s_m, each, g_c, g_m, d: tl.constexpr,
    SPREAD: tl.constexpr, SCALED: tl.constexpr, LEARN: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, BD)
    cols = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = (rows < d)[:, None] & (cols < m)[None, :]
    at = rows.to(tl.int64)[:, None] * s_c + cols[None, :] * s_m
    if SPREAD:
        whose = (tl.program_id(0) * BM // each).to(tl.int64)
        g = tl.load(G + rows.to(tl.int64) * g_c + whose * g_m, mask=rows < d, other=0.0).to(tl.float32)
        g = tl.where(inside, g[:, None], 0.0)
    else:
        g = tl.load(G + at, mask=inside, other=0.0).to(tl.float32)
    unit = tl.load(UNIT + at, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(RSTD + cols, mask=cols < m, other=0.0)
    gu = g * _along(GAMMA, rows, d)
    gz = (gu - tl.sum(gu, 0)[None, :] / d - unit * (tl.sum(gu * unit, 0)[None, :] / d)) * rstd[None, :]
    tl.store(GY + at, gz.to(GY.dtype.element_ty), mask=inside)
    if SCALED:
        tl.store(GX + at, (gz * _along(SCALE, rows, d)).to(GX.dtype.element_ty), mask=inside)
    if LEARN:
        place = SUMS + tl.program_id(0).to(tl.int64) * 4 * d + rows
        tl.store(place, tl.sum(g * unit, 1), mask=rows < d)
        tl.store(place + d, tl.sum(g, 1), mask=rows < d)
        tl.store(place + 3 * d, tl.sum(gz, 1), mask=rows < d)
        if SCALED:
            x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(place + 2 * d, tl.sum(tl.where(inside, gz * x, 0.0), 1), mask=rows < d)
