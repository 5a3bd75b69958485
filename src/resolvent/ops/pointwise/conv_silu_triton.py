"""`conv_silu` as one Triton kernel in each direction: a thread loops over some steps of a few channels.

The rows that the taps still need, and in the backward the derivatives, stay in registers, so that each is loaded and
computed once, except at the ends of a loop. Sums over steps and sequences (the gradients of taps and bias) give one
row per program, which makes their total deterministic, bit for bit.
"""
# Triton's language has no unpacking into tuples.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.selective_scan.triton_tiles import sigmoid
from resolvent.runtime.launch import on_device, quick_jit

STEPS, CHANNELS = 32, 128  # steps per loop, and adjacent channels per warp
WALKS = 4  # loops per program, consecutive in time, one warp each
ROWS = 4  # rows loaded at a time, or all that the taps reach back


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """y (b, l, e)."""
    x = _rows(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _, l, e = x.shape
    with on_device(x):
        forward_kernel[_grid(x)](x, weight.contiguous(), bias, y, x.stride(1), l, e, **_tile(weight))
    return y


def backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, learn: bool, into: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """∂x, in `into` if given, and with `learn` the gradients of the taps (e, w) and of the bias."""
    _, l, e = x.shape
    g, x, w = g.contiguous(), _rows(x), weight.shape[1]
    gx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if into is None else into
    grid = _grid(x)
    sums = torch.empty((grid[0] * grid[2], w + 1, e), dtype=torch.float32, device=g.device) if learn else None
    with on_device(g):
        backward_kernel[grid](
            g, x, weight.contiguous(), bias, gx, gx if sums is None else sums, x.stride(1), gx.stride(1), l, e,
            LEARN=learn, **_tile(weight),
        )  # fmt: skip
    if sums is None:
        return gx, None, None
    total = sums.sum(0)  # (w + 1, e)
    return gx, total[:w].t().to(weight.dtype), total[w].to(weight.dtype)


def _grid(x: Tensor) -> tuple[int, int, int]:
    b, l, e = x.shape
    return triton.cdiv(l, WALKS * STEPS), triton.cdiv(e, CHANNELS), b


def _tile(weight: Tensor) -> dict[str, int]:
    w = weight.shape[1]
    rows = ROWS if w <= ROWS + 1 else 2 * ROWS
    return {"W": w, "N": STEPS, "R": rows, "G": WALKS, "BE": CHANNELS, "num_warps": WALKS}


def _rows(x: Tensor) -> Tensor:
    """x with a uniform step stride, also across sequences, and contiguous channels."""
    return x if x.stride(2) == 1 and x.stride(0) == x.shape[1] * x.stride(1) else x.contiguous()


@triton.jit
def _load(X, step, t, c, l, e):  # type: ignore[no-untyped-def]
    """Step t (G,) of each walk at channels c (BE,), zeros outside of the sequence."""
    inside = ((t >= 0) & (t < l))[:, None] & (c < e)[None, :]
    return tl.load(X + (t[:, None] * step + c[None, :]), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _save(Y, step, y, t, inside, c, e):  # type: ignore[no-untyped-def]
    at = Y + (t[:, None] * step + c[None, :])
    tl.store(at, y.to(Y.dtype.element_ty), mask=inside[:, None] & (c < e)[None, :])


@triton.jit
def _start(X, WEIGHT, BIAS, step, t, c, l, e, W: tl.constexpr):  # type: ignore[no-untyped-def]
    """The W - 1 rows before a walk, the taps and the bias (1, BE)."""
    seen, taps = (), ()
    for j in tl.static_range(W - 1):
        seen = seen + (_load(X, step, t - (W - 1) + j, c, l, e),)
    for j in tl.static_range(W):
        taps = taps + (tl.load(WEIGHT + c * W + j, mask=c < e, other=0.0).to(tl.float32)[None, :],)
    return seen, taps, tl.load(BIAS + c, mask=c < e, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _blend(rows, taps, total, W: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """total + sum_j taps[j] rows[j], the rows counted from the end if BACK."""
    for j in tl.static_range(W):
        total += rows[W - 1 - j if BACK else j] * taps[j]
    return total


@quick_jit
def forward_kernel(  # type: ignore[no-untyped-def]
    X, WEIGHT, BIAS, Y, step, l, e,
    W: tl.constexpr, N: tl.constexpr, R: tl.constexpr, G: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    t = (tl.program_id(0) * G + tl.arange(0, G)) * N
    c = tl.program_id(1) * BE + tl.arange(0, BE)
    X += tl.program_id(2).to(tl.int64) * l * step
    Y += tl.program_id(2).to(tl.int64) * l * e
    seen, taps, bias = _start(X, WEIGHT, BIAS, step, t, c, l, e, W)
    for i in range(0, N, R):
        fresh = ()
        for q in tl.static_range(R):
            fresh = fresh + (_load(X, step, t + i + q, c, l, e),)
        for q in tl.static_range(R):
            seen = seen + (fresh[q],)
            a = _blend(seen, taps, tl.zeros((G, BE), tl.float32) + bias, W, False)
            _save(Y, e, a * sigmoid(a), t + i + q, t + i + q < l, c, e)
            seen = seen[1:]


@quick_jit
def backward_kernel(  # type: ignore[no-untyped-def]
    D, X, WEIGHT, BIAS, GX, SUMS, step, into, l, e,
    LEARN: tl.constexpr, W: tl.constexpr, N: tl.constexpr, R: tl.constexpr, G: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """D is ∂y; SUMS (b programs, W + 1, e): the taps' gradients and the bias's.

    ∂x at a step is known W - 1 steps later: a loop continues for R steps, and skips those of the next.
    """
    t = (tl.program_id(0) * G + tl.arange(0, G)) * N
    c = tl.program_id(1) * BE + tl.arange(0, BE)
    D += tl.program_id(2).to(tl.int64) * l * e
    X += tl.program_id(2).to(tl.int64) * l * step
    GX += tl.program_id(2).to(tl.int64) * l * into
    seen, taps, bias = _start(X, WEIGHT, BIAS, step, t, c, l, e, W)
    zero = tl.zeros((G, BE), tl.float32)
    slopes, sums = (zero,) * (W - 1), (zero,) * (W + 1)
    for i in range(0, N + R, R):
        fresh, given = (), ()
        for q in tl.static_range(R):
            fresh = fresh + (_load(X, step, t + i + q, c, l, e),)
            given = given + (_load(D, e, t + i + q, c, l, e),)
        for q in tl.static_range(R):
            seen = seen + (fresh[q],)
            a = _blend(seen, taps, zero + bias, W, False)
            share = sigmoid(a)
            slope = given[q] * (share * (1.0 + a * (1.0 - share)))
            slopes = slopes + (slope,)
            if LEARN:
                slope = tl.where(i < N, slope, 0.0)
                more = ()
                for j in tl.static_range(W):
                    more = more + (sums[j] + slope * seen[j],)
                sums = more + (sums[W] + slope,)
            s = t + i + q - (W - 1)
            _save(GX, into, _blend(slopes, taps, zero, W, True), s, (s >= t) & (s < t + N) & (s < l), c, e)
            seen, slopes = seen[1:], slopes[1:]
    if LEARN:
        place = SUMS + (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (W + 1) * e + c
        for j in tl.static_range(W + 1):
            tl.store(place + j * e, tl.sum(sums[j], 0), mask=c < e)
