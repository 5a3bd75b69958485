"""`conv_silu` as one Triton kernel in each direction: some steps and channels of one sequence to a program.

The taps read rows that a neighbouring step has just read, from cache. Sums over steps and sequences (of the taps' and
the bias's gradients) leave one row per program, so that adding them up gives the same bits every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import Quick, on_device

STEPS, CHANNELS = 32, 64  # to a tile


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y and a, both (b, l, e)."""
    x = _rows(x)
    y, a = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    b, l, e = x.shape
    grid = (triton.cdiv(l, STEPS), triton.cdiv(e, CHANNELS), b)
    with on_device(x):
        forward_kernel[grid](
            x, weight.contiguous(), bias, y, a, x.stride(1), l, e, W=weight.shape[1], BT=STEPS, BE=CHANNELS, num_warps=4
        )
    return y, a


def backward(
    g: Tensor, a: Tensor, x: Tensor, weight: Tensor, learn: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """∂x, and with `learn` the gradients of the taps (e, w) and of the bias."""
    b, l, e = a.shape
    g, x, w = g.contiguous(), _rows(x), weight.shape[1]
    gx = torch.empty_like(a)
    grid = (triton.cdiv(l, STEPS), triton.cdiv(e, CHANNELS), b)
    sums = torch.empty((b * grid[0], w + 1, e), dtype=torch.float32, device=g.device) if learn else None
    with on_device(g):
        backward_kernel[grid](
            g, a, x, weight.contiguous(), gx, gx if sums is None else sums, x.stride(1), l, e,
            W=w, LEARN=learn, BT=STEPS, BE=CHANNELS, num_warps=4,
        )  # fmt: skip
    if sums is None:
        return gx, None, None
    total = sums.sum(0)  # (w + 1, e)
    return gx, total[:w].t().to(weight.dtype), total[w].to(weight.dtype)


def _rows(x: Tensor) -> Tensor:
    """x with its steps at one distance, also from sequence to sequence, and its channels side by side."""
    return x if x.stride(2) == 1 and x.stride(0) == x.shape[1] * x.stride(1) else x.contiguous()


@Quick
@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    X, WEIGHT, BIAS, Y, A, step, l, e, W: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr
):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BE + tl.arange(0, BE)
    row = tl.program_id(2).to(tl.int64) * l
    channel, time = (c < e)[None, :], (t < l)[:, None]
    a = tl.zeros((BT, BE), tl.float32) + tl.load(BIAS + c, mask=c < e, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        s = t - (W - 1) + j
        x = tl.load(X + row * step + s[:, None] * step + c[None, :], mask=(s >= 0)[:, None] & time & channel, other=0.0)
        a += x.to(tl.float32) * tl.load(WEIGHT + c * W + j, mask=c < e, other=0.0).to(tl.float32)[None, :]
    at = row * e + t[:, None] * e + c[None, :]
    tl.store(A + at, a.to(A.dtype.element_ty), mask=time & channel)
    tl.store(Y + at, (a * tl.sigmoid(a)).to(Y.dtype.element_ty), mask=time & channel)


@Quick
@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, A, X, WEIGHT, GX, SUMS, step, l, e,
    W: tl.constexpr, LEARN: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """SUMS (b tiles, W + 1, e): the taps' gradients and the bias's."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BE + tl.arange(0, BE)
    row = tl.program_id(2).to(tl.int64) * l
    channel, time = (c < e)[None, :], (t < l)[:, None]
    gx = tl.zeros((BT, BE), tl.float32)
    for j in tl.static_range(W):
        s = t + (W - 1) - j
        there = (s < l)[:, None] & channel
        at = row * e + s[:, None] * e + c[None, :]
        a = tl.load(A + at, mask=there, other=0.0).to(tl.float32)
        g = tl.load(G + at, mask=there, other=0.0).to(tl.float32)
        share = tl.sigmoid(a)
        ga = g * share * (1 + a * (1 - share))
        gx += ga * tl.load(WEIGHT + c * W + j, mask=c < e, other=0.0).to(tl.float32)[None, :]
    tl.store(GX + row * e + t[:, None] * e + c[None, :], gx.to(GX.dtype.element_ty), mask=time & channel)
    if LEARN:  # the last tap stands at the present, so ga is that of step t
        place = SUMS + (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (W + 1) * e + c
        tl.store(place + W * e, tl.sum(ga, 0), mask=c < e)
        for j in tl.static_range(W):
            s = t - (W - 1) + j
            there = (s >= 0)[:, None] & time & channel
            x = tl.load(X + row * step + s[:, None] * step + c[None, :], mask=there, other=0.0).to(tl.float32)
            tl.store(place + j * e, tl.sum(ga * x, 0), mask=c < e)
