"""`biased_silu` as one Triton kernel in each direction: some columns of one channel per program.

A channel's columns, its steps in all sequences, are adjacent. Sums over them, the bias's gradient, give one number
per program, which makes their total deterministic, bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import either, on_device

COLUMNS = 2048  # per program


def forward(x: Tensor, bias: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    c, m = x.shape[0], x[0].numel()
    with on_device(x):
        forward_kernel[(triton.cdiv(m, COLUMNS), c)](x, bias, out, m, BM=COLUMNS, num_warps=8)
    return out


def backward(
    g: Tensor, x: Tensor, bias: Tensor, learn: bool, out: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """∂x, in `out` if given, and with `learn` ∂bias."""
    g, x = g.contiguous(), x.contiguous()
    gx = torch.empty_like(x) if out is None else out
    c, m = x.shape[0], x[0].numel()
    tiles = triton.cdiv(m, COLUMNS)
    sums = torch.empty((c, tiles), dtype=torch.float32, device=g.device) if learn else None
    with on_device(g):
        backward_kernel[(tiles, c)](g, x, bias, gx, either(sums, bias), m, LEARN=learn, BM=COLUMNS, num_warps=8)
    return gx, None if sums is None else sums.sum(1)


@triton.jit
def place(m, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """The program's channel, the offsets of its columns, and which of them exist."""
    c = tl.program_id(1)
    cols = tl.program_id(0) * BM + tl.arange(0, BM)
    return c, c.to(tl.int64) * m + cols, cols < m


@triton.jit
def one(P, at):  # type: ignore[no-untyped-def]
    return tl.load(P + at).to(tl.float32)


@triton.jit
def read(P, at, live):  # type: ignore[no-untyped-def]
    return tl.load(P + at, mask=live, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(X, BIAS, OUT, m, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    c, at, live = place(m, BM)
    x = read(X, at, live) + one(BIAS, c)
    tl.store(OUT + at, (x * tl.sigmoid(x)).to(OUT.dtype.element_ty), mask=live)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    G, X, BIAS, GX, SUMS, m, LEARN: tl.constexpr, BM: tl.constexpr
):
    c, at, live = place(m, BM)
    g = read(G, at, live)
    x = read(X, at, live) + one(BIAS, c)
    share = tl.sigmoid(x)
    g *= share * (1 + x * (1 - share))
    tl.store(GX + at, g.to(GX.dtype.element_ty), mask=live)
    if LEARN:
        tl.store(SUMS + c * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.where(live, g, 0.0), 0))
