"""`constant` as one Triton kernel: a program loops over the steps of one recurrence of one sequence, tile by tile.

Inside a tile the steps are joined by the associative (a₁, b₁)∘(a₂, b₂) = (a₂a₁, a₂b₁ + b₂) in float32; the state that
enters is added to the first step. The adjoint runs from the last tile to the first, and also sums ∂lam.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.linear_scan.triton_kernels import join_complex
from resolvent.runtime.launch import on_device

STEPS = 1024  # per tile


def scan(lam: Tensor, v: Tensor) -> Tensor:
    """h (2p, b, l) of v (2p, b, l) and lam (p, 2)."""
    v = v.contiguous()
    h = torch.empty_like(v)
    _launch(lam, v, h, None, None, back=False)
    return h


def adjoint(lam: Tensor, g: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """∂v, and if the states h are given ∂lam (p, 2)."""
    g = g.contiguous()
    gv = torch.empty_like(g)
    parts = None if h is None else torch.empty((*lam.shape, g.shape[1]), dtype=torch.float32, device=g.device)
    _launch(lam, g, gv, h, parts, back=True)
    return gv, None if parts is None else parts.sum(2).to(lam.dtype)


def _launch(lam: Tensor, v: Tensor, out: Tensor, h: Tensor | None, parts: Tensor | None, back: bool) -> None:
    _, b, l = v.shape
    steps = min(STEPS, max(16, triton.next_power_of_2(l)))
    with on_device(v):
        scan_kernel[(lam.shape[0] * b,)](
            lam.detach().contiguous(), v, out, v if h is None else h, out if parts is None else parts, b, l,
            BACK=back, LEARN=h is not None, BT=steps, num_warps=max(1, min(4, steps // 256)),
        )  # fmt: skip


@triton.jit
def scan_kernel(  # type: ignore[no-untyped-def]
    LAM, V, OUT, H, PARTS, b, l, BACK: tl.constexpr, LEARN: tl.constexpr, BT: tl.constexpr
):
    """Rows 2j and 2j + 1 of V (2p, b, l) and OUT; H the states of the forward pass, PARTS (p, 2, b)."""
    pid = tl.program_id(0)
    j, row = pid // b, pid % b
    re = (2 * j * b + row).to(tl.int64) * l
    im = re + b * l
    lr = tl.load(LAM + 2 * j).to(tl.float32)
    li = tl.load(LAM + 2 * j + 1).to(tl.float32)
    if BACK:
        li = -li
    i = tl.arange(0, BT)
    begin = i == (BT - 1 if BACK else 0)
    end = i == (0 if BACK else BT - 1)
    hr, hi = 0.0, 0.0
    total_r, total_i = tl.zeros((BT,), tl.float32), tl.zeros((BT,), tl.float32)
    tiles = tl.cdiv(l, BT)
    for k in tl.range(0, tiles):
        t = (tiles - 1 - k if BACK else k) * BT + i
        live = t < l
        ar, ai = tl.where(live, lr, 1.0), tl.where(live, li, 0.0)
        br = tl.load(V + re + t, mask=live, other=0.0).to(tl.float32)
        bi = tl.load(V + im + t, mask=live, other=0.0).to(tl.float32)
        br = tl.where(begin, br + ar * hr - ai * hi, br)
        bi = tl.where(begin, bi + ar * hi + ai * hr, bi)
        _, _, yr, yi = tl.associative_scan((ar, ai, br, bi), 0, join_complex, reverse=BACK)
        tl.store(OUT + re + t, yr.to(OUT.dtype.element_ty), mask=live)
        tl.store(OUT + im + t, yi.to(OUT.dtype.element_ty), mask=live)
        hr = tl.sum(tl.where(end, yr, 0.0), 0)
        hi = tl.sum(tl.where(end, yi, 0.0), 0)
        if LEARN:
            sr = tl.load(H + re + t - 1, mask=live & (t > 0), other=0.0).to(tl.float32)
            si = tl.load(H + im + t - 1, mask=live & (t > 0), other=0.0).to(tl.float32)
            total_r += tl.where(live, yr * sr + yi * si, 0.0)
            total_i += tl.where(live, yi * sr - yr * si, 0.0)
    if LEARN:
        tl.store(PARTS + 2 * j * b + row, tl.sum(total_r, 0))
        tl.store(PARTS + (2 * j + 1) * b + row, tl.sum(total_i, 0))
