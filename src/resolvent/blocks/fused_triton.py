"""What follows the convolution in `fused`, as one Triton kernel in each direction; formulas in `fused_torch`.

A program takes all channels of some columns (a column is one time step of one sequence), so that the map over channels,
the skip and the norm happen on chip: a forward pass reads y and the skip and writes out and unit(z), a backward pass
reads the gradient and unit(z) and writes two gradients. Sums over columns (of bias, gamma, beta and ba) leave one row
per program, so that adding them up gives the same bits every time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from resolvent.blocks.fused_torch import ACTS, Weights
from resolvent.blocks.fused_triton_kernels import backward_kernel, forward_kernel

KINDS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4, "sigmoid": 5, "tanh": 6}
HALF = {"gelu": 7}  # what a half type's rounding hides
COLUMNS = {torch.bfloat16: 64, torch.float32: 32}  # to a tile
AHEAD = 3  # tiles loaded ahead of the one at work


def forward(y: Tensor, r: Tensor | None, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """out, unit (d, b, l) and 1/deviation (b l,) of y (c, b, l) and the skip r (d, b, l)."""
    c, b, l = y.shape
    d, m = w.low.shape[0], b * l
    out, unit = (torch.empty((d, b, l), dtype=w.dtype, device=y.device) for _ in range(2))
    rstd = torch.empty(m, dtype=torch.float32, device=y.device)
    r = None if r is None else r.contiguous()
    sizes = _sizes(d, c, w)
    with torch.cuda.device(y.device) if y.is_cuda else torch.no_grad():
        forward_kernel[(_programs(m, sizes, y, w),)](
            y, *_steps(y), r, w.low, w.bias, w.gamma, w.beta, w.low_a, w.ba, out, unit, rstd, m, l, w.eps, d, c,
            **_kinds(w), HAS_R=r is not None, **sizes, num_warps=4 if _bent(w) else _warps(w),
        )  # fmt: skip
    return out, unit, rstd


def backward(
    g: Tensor, unit: Tensor, rstd: Tensor, y: Tensor | None, w: Weights, learn: bool
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...] | None]:
    """The gradients of r and y and, with `learn`, those of W, bias, gamma, beta, Wa and ba.

    The gradient of y lies in memory as y does; for the entry, whose y is a view of x (b, l, c), it is in float32.
    """
    d, b, l = unit.shape
    c, m = w.low.shape[1], b * l
    gz = torch.empty_like(unit)
    gy = _like_entry(b, l, c, unit) if w.entry else torch.empty((c, b, l), dtype=w.dtype, device=unit.device)
    gw = gz if w.final == "none" else torch.empty_like(unit) if learn else None
    ga = torch.empty_like(unit) if learn and w.low_a is not None else None
    sizes = _sizes(d, c, w)
    programs = _programs(m, sizes, unit, w)
    sums = torch.empty((programs, 4, d), dtype=torch.float32, device=unit.device) if learn else None
    at = gy if y is None else y
    still = g.stride(2) == 0 and l % sizes["BM"] == 0  # the gradient of a mean over time
    g = g if still else g.contiguous()
    with torch.cuda.device(unit.device) if unit.is_cuda else torch.no_grad():
        backward_kernel[(programs,)](
            g, *g.stride()[:2], unit, rstd, at, *_steps(at), w.low, w.bias, w.gamma, w.low_a, w.ba,
            gz, gy, *_steps(gy), gw, ga, sums, m, l, d, c,
            **_kinds(w), FLAT=not still, LEARN=learn, KEEP_Z=learn or not w.entry, **sizes, num_warps=_warps(w),
        )  # fmt: skip
    found = _learned(sums.sum(0), gw, ga, y, w) if sums is not None and gw is not None and y is not None else None
    return gz, gy, found


def _learned(sums: Tensor, gw: Tensor, ga: Tensor | None, y: Tensor, w: Weights) -> tuple[Tensor | None, ...]:
    flat, v = y.flatten(1), y.flatten(1)
    gWa = None
    if ga is not None and w.low_a is not None and w.ba is not None:
        gWa = _product(ga.flatten(1), flat)
        v = ACTS[w.sigma](torch.addmm(w.ba.to(v.dtype)[:, None], w.low_a, flat)) * flat
    gW = _product(gw.flatten(1), ACTS[w.act](v))
    return gW, sums[2], sums[0], sums[1], gWa, sums[3] if ga is not None else None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left right' over the columns, in float32."""
    if left.dtype != right.dtype:
        left = left.to(right.dtype)
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right.t(), out_dtype=torch.float32)
    return left.float() @ right.t().float()


def _like_entry(b: int, l: int, c: int, unit: Tensor) -> Tensor:
    return torch.empty((b, l, c), dtype=torch.float32, device=unit.device).permute(2, 0, 1)


def _steps(y: Tensor) -> tuple[int, int]:
    """Strides of channel and column of y (c, b, l), whose b and l are one axis in memory."""
    c, t = y.stride(0), y.stride(2)
    if y.stride(1) != t * y.shape[2] and y.shape[1] > 1:
        raise ValueError(f"fused: expected batch and time as one axis in memory, got strides {y.stride()}.")
    return c, t


def _sizes(d: int, c: int, w: Weights) -> dict[str, int]:
    rows, channels = (max(triton.next_power_of_2(n), 16) for n in (d, c))
    return {"BD": rows, "BC": channels, "BM": 32 if _bent(w) else COLUMNS[w.dtype], "AHEAD": AHEAD}


def _warps(w: Weights) -> int:
    """Eight where activations or halves of float32 keep more values alive than four warps have registers for."""
    return 4 if _light(w) else 8


def _light(w: Weights) -> bool:
    """Whether two programs fit on a multiprocessor."""
    return w.linear_in_y and (w.entry or w.dtype == torch.bfloat16)


def _bent(w: Weights) -> bool:
    """Activations in bf16 and one matrix: narrow tiles, so that two programs fit."""
    return not w.linear_in_y and w.low_a is None and w.dtype == torch.bfloat16


def _programs(m: int, sizes: dict[str, int], like: Tensor, w: Weights) -> int:
    """As many as run at once, each of which takes tile after tile."""
    tiles = triton.cdiv(m, sizes["BM"])
    if not like.is_cuda:
        return tiles
    resident = 2 if _light(w) or _bent(w) else 1
    return min(tiles, resident * torch.cuda.get_device_properties(like.device).multi_processor_count)


def _kinds(w: Weights) -> dict[str, Any]:
    kinds = KINDS | HALF if w.low.dtype == torch.bfloat16 else KINDS
    return {
        "ACT": kinds[w.act],
        "FINAL": kinds[w.final],
        "SIGMA": kinds[w.sigma],
        "ADS": w.low_a is not None,
        "PRECISION": "ieee" if w.low.dtype == torch.bfloat16 else "tf32x3",
    }
