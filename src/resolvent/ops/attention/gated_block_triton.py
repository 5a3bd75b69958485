"""The passes of `gated_block` on a GPU other than matrix products: one launch each.

Sums over columns, the gradients of vectors, give one number per program, which makes their total deterministic, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.attention import gated_block_kernels as kernels
from resolvent.ops.attention.column_attention_triton import tiles, weigh
from resolvent.ops.pointwise.biased_silu_triton import backward as biased_silu_backward
from resolvent.ops.pointwise.biased_silu_triton import forward as biased_silu
from resolvent.ops.pointwise.skip_norm import Ending
from resolvent.runtime import chip
from resolvent.runtime.launch import either, on_device

__all__ = [
    "biased_silu", "biased_silu_backward", "close", "close_backward", "open_backward", "open_gates", "project",
    "project_backward", "slope", "weigh",
]  # fmt: skip
COLUMNS = 2048  # per program with one channel
CHANNELS, STEPS = 64, 64  # of a tile with many channels
NUMBERS = 4096  # numbers of a tile with all channels
TILE, DEPTH = 128, 64  # rows and columns of scores per program, channels per product


class Deviations(NamedTuple):
    """Reciprocal deviations of a norm's input, per column."""

    mean: Tensor
    rstd: Tensor


def project(z: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """q, k (c, b, l) = gamma silu(z + bias) + beta, for gamma and beta (2, c)."""
    c, m = z.shape[0], z[0].numel()
    q, k = torch.empty_like(z), torch.empty_like(z)
    with on_device(z):
        kernels.project_kernel[(triton.cdiv(m, COLUMNS), c)](z, bias, gamma, beta, q, k, m, c, BM=COLUMNS, num_warps=8)
    return q, k


def project_backward(
    g: tuple[Tensor, Tensor, Tensor], z: Tensor, w: tuple[Tensor, Tensor, Tensor], out: Tensor, learn: bool
) -> Tensor | None:
    """∂z is written to out; with `learn` the gradients of w: bias, gamma and beta (5, c).

    g: ∂q, ∂k and the sums of the scores' gradient along its rows (b, i), which are zero up to rounding.
    """
    c, b, l = z.shape
    sums = torch.empty((5, c, b), dtype=torch.float32, device=z.device) if learn else None
    with on_device(z):
        kernels.project_backward_kernel[(b, c)](
            *g, z, *w, out, either(sums, w[0]), l, c, LEARN=learn, BL=triton.next_power_of_2(l), num_warps=4
        )
    return None if sums is None else sums.sum(2)


def open_gates(r: Tensor, o: Tensor, bias: Tensor) -> Tensor:
    """silu(r + bias) o."""
    c, m = r.shape[0], r[0].numel()
    out = torch.empty_like(o)
    with on_device(r):
        kernels.open_kernel[(triton.cdiv(m, COLUMNS), c)](r, o, bias, out, m, BM=COLUMNS, num_warps=8)
    return out


def open_backward(
    g: Tensor, r: Tensor, o: Tensor, bias: Tensor, out: Tensor, learn: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """∂o, sum over the channels of o ∂o (b, l), and with `learn` ∂bias; ∂r is written to out."""
    c, m = r.shape[0], r[0].numel()
    go = torch.empty_like(o)
    products = torch.empty(r.shape[1:], dtype=torch.float32, device=r.device)
    tiles = triton.cdiv(m, STEPS)
    sums = torch.empty((tiles, c), dtype=torch.float32, device=r.device) if learn else None
    with on_device(r):
        kernels.open_backward_kernel[(tiles,)](
            g, r, o, bias, out, go, products, either(sums, bias), m, c,
            LEARN=learn, BC=CHANNELS, BM=STEPS, num_warps=4,
        )  # fmt: skip
    return go, products, None if sums is None else sums.sum(0)


def slope(g: Tensor, v: Tensor, p: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of scores, p (g' v - products), and its sums over j; g, v (c, b, l), p (b, i, j)."""
    c, b, l = v.shape
    out, n = torch.empty_like(p), triton.cdiv(l, TILE)
    sums = torch.empty((b, n, l), dtype=torch.float32, device=v.device)
    rows, columns = (tiles(t, DEPTH, TILE) for t in (g, v))
    two = {"maxnreg": 128} if chip.capacity(v) >= 227 else {}  # so that two programs fit without spilling
    with on_device(v):
        kernels.slope_kernel[(b * n * n,)](
            rows, columns, p, products, out, sums, l, c, WHOLE=l % TILE == 0, BT=TILE, BK=DEPTH, num_warps=8,
            num_stages=3, **two,
        )  # fmt: skip
    return out, sums.sum(1)


def close(
    parts: tuple[Tensor, Tensor, Tensor, Tensor], biases: tuple[Tensor, Tensor], end: Ending | None
) -> tuple[Tensor, Deviations | None]:
    """norm(x + step) of the parts u, h, w, x, step = sigmoid(u + bias) (silu(h + w + bias') - x)."""
    x = parts[3]
    (d, m), out = (x.shape[0], x[0].numel()), torch.empty_like(x)
    rows, columns = _tile(d)
    kept = None if end is None else Deviations(*torch.empty((2, m), dtype=torch.float32, device=x.device))
    gamma, beta, eps = (*biases, 0.0) if end is None else (end.gamma, end.beta, end.eps)
    with on_device(x):
        kernels.close_kernel[(triton.cdiv(m, columns),)](
            *parts, *biases, gamma, beta, out, *(kept or biases), m, eps, d,
            NORM=end is not None, BD=rows, BM=columns, num_warps=8,
        )  # fmt: skip
    return out, kept


def close_backward(
    g: Tensor, parts: tuple[Tensor, Tensor, Tensor, Tensor], biases: tuple[Tensor, Tensor], gamma: Tensor | None,
    kept: Sequence[Tensor | None], out: tuple[Tensor, Tensor], learn: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """∂x, and with `learn` the gradients of both biases, gamma and beta (4, d); ∂u and ∂h are written to out."""
    x = parts[3]
    (d, m), gx = (x.shape[0], x[0].numel()), torch.empty_like(x)
    rows, columns = _tile(d)
    programs = triton.cdiv(m, columns)
    sums = torch.empty((programs, 4, d), dtype=torch.float32, device=x.device) if learn else None
    with on_device(x):
        kernels.close_backward_kernel[(programs,)](
            g, *parts, *biases, *(either(t, biases[0]) for t in (gamma, *kept)), *out, gx, either(sums, biases[0]),
            m, d, NORM=gamma is not None, LEARN=learn, BD=rows, BM=columns, num_warps=8,
        )  # fmt: skip
    return gx, None if sums is None else sums.sum(0)


def _tile(d: int) -> tuple[int, int]:
    rows = triton.next_power_of_2(d)
    return rows, max(1, NUMBERS // rows)
