"""Passes over the rows (m, d) around the products of `mimo_scan`, each at memory bandwidth.

Sums over rows give one row per program, which `add_parts` adds in an order determined by the shapes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import on_device, quick_jit

NUMBERS = 8192  # per tile
COLUMNS = 16  # per program that sums rows, 512 at a time


def copy_rows(x: Tensor, out: Tensor | None, first: int, other: Tensor | None) -> Tensor | None:
    """x (m, d) into the columns from `first` on of out (m, w), in its dtype, with zeros in the remaining columns.

    If `other` (m, d) is given, returns the sum (d,) over rows of x times it.
    """
    (m, d), wide = x.shape, first + x.shape[1] if out is None else out.shape[1]
    grid, sizes = _tiles(m, wide - first)
    parts = None if other is None else torch.empty((grid[0], d), dtype=torch.float32, device=x.device)
    with on_device(x):
        copy_kernel[grid](x, out, other, parts, m, d, wide, first, **sizes)
    return None if parts is None else add_parts(parts)


def add_skip(y: Tensor, x: Tensor, D: Tensor) -> Tensor:
    """y + D x in the dtype of x, for rows y, x (m, d) and D (d,)."""
    out, (m, d) = torch.empty_like(x), x.shape
    grid, sizes = _tiles(m, d)
    with on_device(x):
        skip_kernel[grid](y, x, D, out, m, d, **sizes)
    return out


def add_parts(parts: Tensor) -> Tensor:
    """The sum (s,) of rows (m, s) of float32 numbers."""
    m, s = parts.shape
    out = torch.empty((s,), dtype=torch.float32, device=parts.device)
    with on_device(parts):
        sum_kernel[(triton.cdiv(s, COLUMNS),)](parts, out, m, s, BM=512, BD=COLUMNS, num_warps=8)
    return out


def _tiles(m: int, d: int) -> tuple[tuple[int, int], dict[str, int]]:
    columns = min(256, max(4, triton.next_power_of_2(d)))
    rows = NUMBERS // columns
    return (triton.cdiv(m, rows), triton.cdiv(d, columns)), {"BM": rows, "BD": columns, "num_warps": 8}


@triton.jit
def _place(m, d, BM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows and columns of a tile, and which of them exist."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
    column = tl.max_contiguous(tl.program_id(1) * BD + tl.arange(0, BD), 4)[None, :]  # one layout for all dtypes
    return row, column, (row < m) & (column < d)


@quick_jit
def copy_kernel(  # type: ignore[no-untyped-def]
    X, OUT, OTHER, PARTS, m, d, wide, first, BM: tl.constexpr, BD: tl.constexpr
):
    row, column, inside = _place(m, d, BM, BD)
    x = tl.load(X + row * d + column, mask=inside, other=0.0)
    if OUT is not None:
        there = (row < m) & (column < wide - first)
        tl.store(OUT + row * wide + first + column, x.to(OUT.dtype.element_ty), mask=there)
    if OTHER is not None:
        other = tl.load(OTHER + row * d + column, mask=inside, other=0.0).to(tl.float32)
        own = tl.program_id(1) * BD + tl.arange(0, BD)
        tl.store(PARTS + tl.program_id(0) * d + own, tl.sum(x * other, 0), mask=own < d)


@quick_jit
def skip_kernel(Y, X, D, OUT, m, d, BM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, inside = _place(m, d, BM, BD)
    at = row * d + column
    y = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(X + at, mask=inside, other=0.0)
    tl.store(OUT + at, y + tl.load(D + column, mask=column < d, other=0.0) * x, mask=inside)


@quick_jit
def sum_kernel(PARTS, OUT, m, s, BM: tl.constexpr, BD: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * BD + tl.arange(0, BD)
    total = tl.zeros((BM, BD), tl.float32)
    for first in range(0, m, BM):
        row = first + tl.arange(0, BM)
        inside = (row < m)[:, None] & (column < s)[None, :]
        total += tl.load(PARTS + row.to(tl.int64)[:, None] * s + column[None, :], mask=inside, other=0.0)
    tl.store(OUT + column, tl.sum(total, 0), mask=column < s)
