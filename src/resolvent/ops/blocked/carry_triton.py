"""`carry` and its adjoint, and `chain`, on a GPU: a program loops over the blocks of one sequence of one channel.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.runtime.launch import on_device


def carry(a: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    d, b, m, _ = z.shape
    a, z, h0 = _reals(a), z.contiguous(), h0.contiguous()
    with on_device(z):
        forward_kernel[(d * b,)](a, z, h0, before, end, b, m, *_sizes(a), REVERSE=False, num_warps=1)


def carry_backward(a: Tensor, g: Tensor, g_end: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    d, b, m, s = g.shape
    own, g_end = _reals(a), g_end.contiguous()
    g_h0 = torch.empty((d, b, s), dtype=g.dtype, device=g.device)
    parts = None if before is None else torch.empty((d, b, *own.shape[1:]), dtype=g.dtype, device=g.device)
    states = None if before is None else before.contiguous()
    with on_device(g):
        backward_kernel[(d * b,)](own, g, g_end, states, g_h0, parts, b, m, *_sizes(own), num_warps=1)
    if parts is None:
        return g_h0, None
    ga = parts.sum(1)
    return g_h0, torch.view_as_complex(ga) if a.is_complex() else ga


def chain(whole: Tensor, z: Tensor, out: Tensor, reverse: bool) -> None:
    d, b, m, n = z.shape
    z = z.contiguous()
    with on_device(z):
        if whole.dim() == 3:
            rows = triton.next_power_of_2(n)
            own, warps = whole.contiguous(), max(1, rows * rows // 4096)  # 128 matrix numbers per thread
            dense_kernel[(d * b,)](own, z, out, b, m, n, REVERSE=reverse, BN=rows, num_warps=warps)
        else:
            own = _reals(whole)
            forward_kernel[(d * b,)](own, z, None, out, None, b, m, *_sizes(own), REVERSE=reverse, num_warps=1)


def _reals(a: Tensor) -> Tensor:
    return torch.view_as_real(a.resolve_conj()).contiguous() if a.is_complex() else a.contiguous()


def _sizes(a: Tensor) -> tuple[int, bool, int]:
    """n, whether numbers are pairs, and lanes."""
    return a.shape[1], a.dim() == 3, max(32, triton.next_power_of_2(a.shape[1]))


@triton.jit
def _load(P, at, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR:
        return tl.load(P + 2 * at, mask=live, other=0.0), tl.load(P + 2 * at + 1, mask=live, other=0.0)
    else:
        x = tl.load(P + at, mask=live, other=0.0)
        return x, x * 0.0


@triton.jit
def _store(P, at, re, im, live, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    if PAIR:
        tl.store(P + 2 * at, re.to(P.dtype.element_ty), mask=live)
        tl.store(P + 2 * at + 1, im.to(P.dtype.element_ty), mask=live)
    else:
        tl.store(P + at, re.to(P.dtype.element_ty), mask=live)


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    A, Z, H0, BEFORE, END, b, m, n, PAIR: tl.constexpr, BN: tl.constexpr, REVERSE: tl.constexpr
):
    """Z and BEFORE (d b, m, s); H0 and END (d b, s), or None: from zero, without the last state."""
    row, j = tl.program_id(0).to(tl.int64), tl.arange(0, BN)
    live = j < n
    ar, ai = _load(A, row // b * n + j, live, PAIR)
    if H0 is None:
        hr, hi = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    else:
        hr, hi = _load(H0, row * n + j, live, PAIR)
    at, step = row * m * n + j, n
    if REVERSE:
        at, step = at + (m - 1) * n, -n
    zr, zi = _load(Z, at, live, PAIR)
    for k in range(m):
        more = live & (k + 1 < m)
        next_r, next_i = _load(Z, at + step, more, PAIR)  # prefetched during this step
        _store(BEFORE, at, hr, hi, live, PAIR)
        hr, hi = ar * hr - ai * hi + zr, ar * hi + ai * hr + zi
        zr, zi, at = next_r, next_i, at + step
    if END is not None:
        _store(END, row * n + j, hr, hi, live, PAIR)


@triton.jit
def dense_kernel(  # type: ignore[no-untyped-def]
    P, Z, OUT, b, m, n, REVERSE: tl.constexpr, BN: tl.constexpr
):
    """Z and OUT (d b, m, n): h_{k+1} = h_k P + z_k from zero, with P (n, n) of each channel in registers."""
    row, j = tl.program_id(0).to(tl.int64), tl.arange(0, BN)
    live = j < n
    own = P + row // b * n * n + j[:, None] * n + j[None, :]
    p = tl.load(own, mask=live[:, None] & live[None, :], other=0.0)
    h = tl.zeros((BN,), tl.float32)
    at, step = row * m * n + j, n
    if REVERSE:
        at, step = at + (m - 1) * n, -n
    z = tl.load(Z + at, mask=live, other=0.0)
    for k in range(m):
        ahead = tl.load(Z + at + step, mask=live & (k + 1 < m), other=0.0)
        tl.store(OUT + at, h.to(OUT.dtype.element_ty), mask=live)
        h = tl.sum(h[:, None] * p, 0) + z
        z, at = ahead, at + step


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    A, G, G_END, BEFORE, G_H0, PARTS, b, m, n, PAIR: tl.constexpr, BN: tl.constexpr
):
    """G (d b, m, s) is the gradient of BEFORE, overwritten by that of Z; PARTS (d b, s) are sums for A's."""
    row, j = tl.program_id(0).to(tl.int64), tl.arange(0, BN)
    live = j < n
    ar, ai = _load(A, row // b * n + j, live, PAIR)
    cr, ci = _load(G_END, row * n + j, live, PAIR)
    sr, si = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for i in range(m):
        at = (row * m + m - 1 - i) * n + j
        gr, gi = _load(G, at, live, PAIR)
        if BEFORE is not None:
            hr, hi = _load(BEFORE, at, live, PAIR)
            sr += cr * hr + ci * hi
            si += ci * hr - cr * hi
        _store(G, at, cr, ci, live, PAIR)
        cr, ci = ar * cr + ai * ci + gr, ar * ci - ai * cr + gi
    _store(G_H0, row * n + j, cr, ci, live, PAIR)
    if PARTS is not None:
        _store(PARTS, row * n + j, sr, si, live, PAIR)
