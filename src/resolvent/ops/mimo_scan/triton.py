"""The recurrence of `mimo_scan` on a GPU: h_t = lam h_{t-1} + v_t for v (b, l, 2p), real and imaginary part in turn.

A program owns a stretch of one sequence. `ends_kernel` finds what each stretch leaves when it starts from rest;
`states_kernel` joins those before its own, which gives the state that enters, and walks the stretch once more. Two
launches whatever the length, and the walk of a program stays short.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.linear_scan.triton_kernels import join_complex
from resolvent.runtime.launch import Quick, on_device

TILE = 64  # steps at a time
MOST = 64  # stretches of a sequence
NUMBERS = 16  # recurrences of a program


def scan(lam: Tensor, v: Tensor, h0: Tensor | None) -> Tensor:
    """h (b, l, 2p) in float32 of lam (p, 2), v (b, l, 2p) and h0 (b, 2p) or None."""
    return _run(lam, v, h0, None, None, back=False)[0]


def adjoint(lam: Tensor, g: Tensor, h: Tensor | None, h0: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """γ_t = ‾lam γ_{t+1} + g_t, and where the states h are given ∂lam (p, 2) = sum of γ_t ‾h_{t-1}."""
    return _run(lam, g, None, h, h0, back=True)


def _run(
    lam: Tensor, v: Tensor, start: Tensor | None, h: Tensor | None, h0: Tensor | None, back: bool
) -> tuple[Tensor, Tensor | None]:
    b, l, s = v.shape
    p = s // 2
    tiles = triton.cdiv(triton.cdiv(l, TILE), MOST)  # of a stretch
    stretches, groups = triton.cdiv(l, TILE * tiles), triton.cdiv(p, NUMBERS)
    out = torch.empty_like(v)
    ends = torch.empty((b, stretches, s), dtype=torch.float32, device=v.device) if stretches > 1 else None
    parts = None if h is None else torch.empty((b * stretches, s), dtype=torch.float32, device=v.device)
    grid, sizes = (b * stretches, groups), {"TILE": TILE, "BN": NUMBERS, "num_warps": 4}
    with on_device(v):
        if ends is not None:
            ends_kernel[grid](lam, v, ends, l, p, stretches, tiles, BACK=back, **sizes)
        states_kernel[grid](
            lam, v, ends, start, out, h, h0, parts, l, p, stretches, tiles, BACK=back,
            BE=max(16, triton.next_power_of_2(stretches)), LOG=TILE.bit_length() - 1, **sizes,
        )  # fmt: skip
    return out, None if parts is None else parts.sum(0).view(p, 2)


@triton.jit
def _steps(first, l, TILE: tl.constexpr, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Steps of a tile in the order in which the scan meets them, and which of them there are."""
    place = first + tl.arange(0, TILE)
    if BACK:
        return l - 1 - place, place < l
    else:
        return place, place < l


@triton.jit
def _walk(V, lr, li, hr, hi, t, there, row, l, p, j, live, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The states after each step of a tile that is entered with h, and the last of them."""
    mask = there[:, None] & live[None, :]
    at = (row * l + t)[:, None] * (2 * p) + 2 * j[None, :]
    xr = tl.load(V + at, mask=mask, other=0.0).to(tl.float32)
    xi = tl.load(V + at + 1, mask=mask, other=0.0).to(tl.float32)
    ar, ai = tl.where(there[:, None], lr[None, :], 1.0), tl.where(there[:, None], li[None, :], 0.0)
    first = (tl.arange(0, TILE) == 0)[:, None]
    xr = tl.where(first, xr + ar * hr[None, :] - ai * hi[None, :], xr)
    xi = tl.where(first, xi + ar * hi[None, :] + ai * hr[None, :], xi)
    _, _, yr, yi = tl.associative_scan((ar, ai, xr, xi), 0, join_complex)
    last = (tl.arange(0, TILE) == TILE - 1)[:, None]
    return yr, yi, tl.sum(tl.where(last, yr, 0.0), 0), tl.sum(tl.where(last, yi, 0.0), 0), at, mask


@triton.jit
def _multiplier(LAM, j, live, BACK: tl.constexpr):  # type: ignore[no-untyped-def]
    lr = tl.load(LAM + 2 * j, mask=live, other=0.0)
    li = tl.load(LAM + 2 * j + 1, mask=live, other=0.0)
    if BACK:
        li = -li
    return lr, li


@Quick
@triton.jit
def ends_kernel(  # type: ignore[no-untyped-def]
    LAM, V, ENDS, l, p, stretches, tiles, BACK: tl.constexpr, TILE: tl.constexpr, BN: tl.constexpr
):
    """ENDS (b, stretches, 2p): the state after each stretch from rest; V (b, l, 2p)."""
    row, k = (tl.program_id(0) // stretches).to(tl.int64), tl.program_id(0) % stretches
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    live = j < p
    lr, li = _multiplier(LAM, j, live, BACK)
    hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for tile in range(tiles):
        t, there = _steps((k * tiles + tile) * TILE, l, TILE, BACK)
        _, _, hr, hi, _, _ = _walk(V, lr, li, hr, hi, t, there, row, l, p, j, live, TILE)
    at = (row * stretches + k) * (2 * p) + 2 * j
    tl.store(ENDS + at, hr, mask=live)
    tl.store(ENDS + at + 1, hi, mask=live)


@triton.jit
def _power(lr, li, tiles, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    """lam^(tiles 2^LOG)."""
    for _ in tl.static_range(LOG):
        lr, li = lr * lr - li * li, 2.0 * lr * li
    pr, pi = lr * 0.0 + 1.0, lr * 0.0
    for _ in range(tiles):
        pr, pi = pr * lr - pi * li, pr * li + pi * lr
    return pr, pi


@triton.jit
def _enter(  # type: ignore[no-untyped-def]
    ENDS, hr, hi, lr, li, row, k, p, stretches, tiles, j, live, BE: tl.constexpr, LOG: tl.constexpr
):
    """The state that enters stretch k, from what entered the first."""
    q = tl.arange(0, BE)
    before = (q < k)[:, None]
    at = ((row * stretches + q)[:, None]) * (2 * p) + 2 * j[None, :]
    er = tl.load(ENDS + at, mask=before & live[None, :], other=0.0)
    ei = tl.load(ENDS + at + 1, mask=before & live[None, :], other=0.0)
    wr, wi = _power(lr, li, tiles, LOG)
    ar, ai = tl.where(before, wr[None, :], 1.0), tl.where(before, wi[None, :], 0.0)
    first, last = (q == 0)[:, None], (q == BE - 1)[:, None]
    er = tl.where(first, er + ar * hr[None, :] - ai * hi[None, :], er)
    ei = tl.where(first, ei + ar * hi[None, :] + ai * hr[None, :], ei)
    _, _, yr, yi = tl.associative_scan((ar, ai, er, ei), 0, join_complex)
    return tl.sum(tl.where(last, yr, 0.0), 0), tl.sum(tl.where(last, yi, 0.0), 0)


@Quick
@triton.jit
def states_kernel(  # type: ignore[no-untyped-def]
    LAM, V, ENDS, START, OUT, H, H0, PARTS, l, p, stretches, tiles,
    BACK: tl.constexpr, BE: tl.constexpr, LOG: tl.constexpr, TILE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """OUT (b, l, 2p), the states; with BACK and H, the states of the forward pass, PARTS (b stretches, 2p) of ∂lam."""
    row, k = (tl.program_id(0) // stretches).to(tl.int64), tl.program_id(0) % stretches
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    live = j < p
    lr, li = _multiplier(LAM, j, live, BACK)
    hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    if START is not None:
        hr = tl.load(START + row * (2 * p) + 2 * j, mask=live, other=0.0)
        hi = tl.load(START + row * (2 * p) + 2 * j + 1, mask=live, other=0.0)
    if ENDS is not None:  # a scan with lam^(steps of a stretch)
        hr, hi = _enter(ENDS, hr, hi, lr, li, row, k, p, stretches, tiles, j, live, BE, LOG)
    sr, si = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for tile in range(tiles):
        t, there = _steps((k * tiles + tile) * TILE, l, TILE, BACK)
        yr, yi, hr, hi, at, mask = _walk(V, lr, li, hr, hi, t, there, row, l, p, j, live, TILE)
        tl.store(OUT + at, yr.to(OUT.dtype.element_ty), mask=mask)
        tl.store(OUT + at + 1, yi.to(OUT.dtype.element_ty), mask=mask)
        if H is not None:
            earlier = mask & (t > 0)[:, None]
            gr = tl.load(H + at - 2 * p, mask=earlier, other=0.0)
            gi = tl.load(H + at - 2 * p + 1, mask=earlier, other=0.0)
            if H0 is not None:
                start = (row * (2 * p) + 2 * j)[None, :]
                none = mask & (t == 0)[:, None]
                gr += tl.load(H0 + start + (t * 0)[:, None], mask=none, other=0.0)
                gi += tl.load(H0 + start + 1 + (t * 0)[:, None], mask=none, other=0.0)
            sr += tl.sum(tl.where(mask, yr * gr + yi * gi, 0.0), 0)
            si += tl.sum(tl.where(mask, yi * gr - yr * gi, 0.0), 0)
    if PARTS is not None:
        at = tl.program_id(0).to(tl.int64) * (2 * p) + 2 * j
        tl.store(PARTS + at, sr, mask=live)
        tl.store(PARTS + at + 1, si, mask=live)
