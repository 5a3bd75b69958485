"""The softmax of `column_attention` and its gradient, each one Triton kernel that works in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import on_device

NUMBERS = 8192  # of a tile


def softmax_(scores: Tensor, line: Tensor) -> None:
    """scores (b, i, j) become softmax(scores + line[i - j + l - 1]) over j."""
    b, l, _ = scores.shape
    wide, rows = _tile(l)
    with on_device(scores):
        softmax_kernel[(triton.cdiv(b, rows), l)](scores, line.contiguous(), b, l, BB=rows, BL=wide, num_warps=8)


def slope_(g: Tensor, p: Tensor) -> None:
    """The gradient g of p (b, i, j) becomes that of the scores, p (g - sum over j of p g)."""
    b, l, _ = g.shape
    wide, rows = _tile(l)
    with on_device(g):
        slope_kernel[(triton.cdiv(b * l, rows),)](g, p, b * l, l, BR=rows, BL=wide, num_warps=8)


def _tile(l: int) -> tuple[int, int]:
    wide = triton.next_power_of_2(l)
    return wide, max(1, NUMBERS // wide)


@triton.jit
def softmax_kernel(S, LINE, b, l, BB: tl.constexpr, BL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row i of BB sequences, which share its biases."""
    i = tl.program_id(1)
    row = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, BL)
    inside = (row < b)[:, None] & (j < l)[None, :]
    at = (row.to(tl.int64) * l + i)[:, None] * l + j[None, :]
    bias = tl.load(LINE + i - j + l - 1, mask=j < l, other=0.0).to(tl.float32)
    s = tl.load(S + at, mask=inside, other=float("-inf")).to(tl.float32) + bias[None, :]
    top = tl.max(s, 1)
    e = tl.exp(s - tl.where(row < b, top, 0.0)[:, None])
    total = tl.where(row < b, tl.sum(e, 1), 1.0)
    tl.store(S + at, (e / total[:, None]).to(S.dtype.element_ty), mask=inside)


@triton.jit
def slope_kernel(G, P, rows, l, BR: tl.constexpr, BL: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    j = tl.arange(0, BL)
    inside = (row < rows)[:, None] & (j < l)[None, :]
    at = row.to(tl.int64)[:, None] * l + j[None, :]
    g = tl.load(G + at, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(P + at, mask=inside, other=0.0).to(tl.float32)
    gs = p * (g - tl.sum(p * g, 1)[:, None])
    tl.store(G + at, gs.to(G.dtype.element_ty), mask=inside)
