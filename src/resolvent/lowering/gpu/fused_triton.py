"""The part of `fused` after the convolution, as one Triton kernel in each direction; formulas in `fused_torch`.

A program handles all channels of some columns (a column is one time step of one sequence), so that the map over
channels, the skip and the norm happen on chip: a forward pass reads y and the skip and writes out and unit(z), a
backward pass reads the gradient and unit(z) and writes two gradients. Derivatives of activations are saved, with bf16
as bytes in steps of 1/200, whose error is that of bf16 near one, and not recomputed in the backward. Sums over
columns (of bias, gamma, beta and ba) give one row per program, which makes their total deterministic, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from resolvent.lowering.eager import CURVES
from resolvent.lowering.gpu.fused_torch import Kept, Weights
from resolvent.lowering.gpu.fused_triton_kernels import backward_kernel, forward_kernel
from resolvent.lowering.gpu.tiles import Tile, choose_tile, has_room
from resolvent.ops.product import multiply
from resolvent.runtime import chip
from resolvent.runtime.launch import on_device

KINDS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4, "sigmoid": 5, "tanh": 6}
HALF = {"gelu": 7}  # approximations hidden by half-precision rounding
NARROW = 8  # channels
SLOPES = {torch.bfloat16: torch.uint8, torch.float32: torch.float32}  # their storage type


def forward(y: Tensor, r: Tensor | None, w: Weights, keep: bool = True) -> tuple[Tensor, Kept | None]:
    """out (d, b, l) of y (c, b, l) and the skip r (d, b, l), and with `keep` the tensors saved for `backward`."""
    c, b, l = y.shape
    d, m = w.low.shape[0], b * l
    out = torch.empty((d, b, l), dtype=w.dtype, device=y.device)
    kept = _room(y, out, w) if keep else None
    r = None if r is None else r.contiguous()
    tile = _tile(w, 0, y)
    with on_device(y):
        forward_kernel[(_programs(m, tile, y),)](
            y, *_steps(y), r, w.low, w.bias, w.gamma, w.beta, w.low_a, w.ba, out, *(kept or (None,) * 4), m, l,
            w.eps, d, c, **_kinds(w), HAS_R=r is not None, KEEP=keep, NARROW=_is_narrow(w), **_sizes(d, c, tile),
            num_warps=tile.warps,
        )  # fmt: skip
    return out, kept


def _room(y: Tensor, out: Tensor, w: Weights) -> Kept:
    """Buffers for unit, 1/deviation and the activations' derivatives."""
    rstd = torch.empty(out[0].numel(), dtype=torch.float32, device=y.device)
    bent = [w.low_a is None and name != "none" for name in (w.act, w.final)]
    first, last = (
        torch.empty(t.shape, dtype=SLOPES[w.dtype], device=y.device) if on else None
        for t, on in zip((y, out), bent, strict=True)
    )
    return Kept(torch.empty_like(out), rstd, first, last)


def backward(
    g: Tensor, kept: Kept, y: Tensor | None, w: Weights, learn: bool
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...] | None]:
    """The gradients of r and y and, with `learn`, those of W, bias, gamma, beta, Wa and ba.

    The gradient of y has y's memory layout; for the entry, whose y is a view of x (b, l, c), it is in float32.
    """
    unit, (d, b, l) = kept.unit, kept.unit.shape
    c, m = w.low.shape[1], b * l
    gz = torch.empty_like(unit)
    gy = _like_entry(b, l, c, unit) if w.entry else torch.empty((c, b, l), dtype=w.dtype, device=unit.device)
    gw = gz if w.final == "none" else torch.empty_like(unit) if learn else None
    ga = torch.empty_like(unit) if learn and w.low_a is not None else None
    tile = _tile(w, 2 if learn else 1, unit)
    programs = _programs(m, tile, unit)
    sums = torch.empty((programs, 4, d), dtype=torch.float32, device=unit.device) if learn else None
    at = gy if y is None else y
    still = g.stride(2) == 0 and l % 16 == 0  # the gradient of a mean over time; rows are aligned
    g = g if still else g.contiguous()
    with on_device(unit):
        backward_kernel[(programs,)](
            g, *g.stride()[:2], *kept, at, *_steps(at), w.low, w.bias, w.gamma, w.low_a, w.ba,
            gz, gy, *_steps(gy), gw, ga, sums, m, l, d, c,
            **_kinds(w), FLAT=not still, LEARN=learn, KEEP_Z=learn or not w.entry, NARROW=_is_narrow(w),
            **_sizes(d, c, tile), num_warps=tile.warps,
        )  # fmt: skip
    found = (
        _find_gradients(sums.sum(0), gw, ga, y, w) if sums is not None and gw is not None and y is not None else None
    )
    return gz, gy, found


def _find_gradients(sums: Tensor, gw: Tensor, ga: Tensor | None, y: Tensor, w: Weights) -> tuple[Tensor | None, ...]:
    flat, v = y.flatten(1), y.flatten(1)
    gWa = None
    if ga is not None and w.low_a is not None and w.ba is not None:
        gWa = _product(ga.flatten(1), flat)
        v = CURVES[w.sigma](torch.addmm(w.ba.to(v.dtype)[:, None], w.low_a, flat)) * flat
    gW = _product(gw.flatten(1), CURVES[w.act](v))
    return gW, sums[2], sums[0], sums[1], gWa, sums[3] if ga is not None else None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left right' over the columns, in float32."""
    return multiply(left.to(right.dtype), right.t())


def _like_entry(b: int, l: int, c: int, unit: Tensor) -> Tensor:
    return torch.empty((b, l, c), dtype=torch.float32, device=unit.device).permute(2, 0, 1)


def _steps(y: Tensor) -> tuple[int, int]:
    """Strides of channel and column of y (c, b, l), whose b and l are contiguous as one axis."""
    c, t = y.stride(0), y.stride(2)
    if y.stride(1) != t * y.shape[2] and y.shape[1] > 1:
        raise ValueError(f"fused: expected batch and time as one axis in memory, got strides {y.stride()}.")
    return c, t


def _is_narrow(w: Weights) -> bool:
    """An entry of few channels, for which matrix units would be mostly idle."""
    return w.entry and w.linear_in_y and w.low.shape[1] <= NARROW


def fits(w: Weights) -> bool:
    """Whether these blocks fit on the chip of the weights' device."""
    return has_room(_sort(w), w.low.dtype, _pad_sizes(*w.low.shape), chip.capacity(w.low))


def _tile(w: Weights, which: int, like: Tensor) -> Tile:
    found = choose_tile(_sort(w), w.low.dtype, which, _pad_sizes(*w.low.shape), chip.capacity(like))
    if found is None:
        raise ValueError(f"fused: expected a device with room for {tuple(w.low.shape)} channels; ask `fits` first.")
    return found


def _pad_sizes(d: int, c: int) -> tuple[int, int]:
    return max(triton.next_power_of_2(d), 16), max(triton.next_power_of_2(c), 16)


def _sizes(d: int, c: int, tile: Tile) -> dict[str, int]:
    rows, channels = _pad_sizes(d, c)
    return {"BD": rows, "BC": channels, "BM": tile.columns, "AHEAD": tile.ahead}


def _sort(w: Weights) -> str:
    if w.entry:
        return "entry"
    return "scaled" if w.low_a is not None else "plain" if w.linear_in_y else "bent"


def _programs(m: int, tile: Tile, like: Tensor) -> int:
    """The number of concurrent programs, each of which loops over tiles."""
    tiles = triton.cdiv(m, tile.columns)
    if not like.is_cuda:
        return tiles
    return min(tiles, tile.resident * torch.cuda.get_device_properties(like.device).multi_processor_count)


def _kinds(w: Weights) -> dict[str, Any]:
    kinds = KINDS | HALF if w.low.dtype == torch.bfloat16 else KINDS
    return {
        "ACT": kinds[w.act],
        "FINAL": kinds[w.final],
        "SIGMA": kinds[w.sigma],
        "ADS": w.low_a is not None,
        "PRECISION": "ieee" if w.low.dtype == torch.bfloat16 else "tf32x3",
    }
