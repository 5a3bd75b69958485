"""The impulse response of a bank of complex modes, K_k = Re sum_n w e^{(k - s) z}, and its gradients: one kernel each.

With s = l - 1 where a mode grows and 0 where it decays, no power exceeds one: a kernel normalised by its
last step, like a softmax kernel, stays accurate in float32. Angles are reduced in float64 (`triton_kernels.power`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.modes.triton_kernels import against, power, times
from resolvent.runtime.launch import on_device, quick_jit

STRETCH = 64  # steps whose powers are computed once


@triton.jit
def _load(P, at, live):  # type: ignore[no-untyped-def]
    """A number of (d, n, 2)."""
    return tl.load(P + 2 * at, mask=live, other=0.0), tl.load(P + 2 * at + 1, mask=live, other=0.0)


@triton.jit
def _start(Z, c, n, l, BN: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """z, s and e^{i z} for the first rows i, masked beyond the length, where a growing mode would overflow."""
    j, i = tl.arange(0, BN), tl.arange(0, ROWS)
    zr, zi = _load(Z, c * n + j, j < n)
    fr, fi = power(zr, zi, tl.minimum(i, l - 1))
    return zr, zi, tl.where(zr > 0, l - 1, 0), fr, fi


@triton.jit
def _raise_shifted(zr, zi, first, s, fr, fi):  # type: ignore[no-untyped-def]
    """e^{(first + i - s) z}, (rows, BN)."""
    br, bi = power((first - s) * zr, (first - s) * zi, tl.full((1,), 1, tl.int32))
    return times(br, bi, fr, fi)


@quick_jit
def response_kernel(Z, W, K, n, l, BN: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """K (d, l); a program has ROWS steps of one channel."""
    c, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    j, k = tl.arange(0, BN), first + tl.arange(0, ROWS)
    zr, zi, s, fr, fi = _start(Z, c, n, l, BN, ROWS)
    wr, wi = _load(W, c * n + j, j < n)
    qr, qi = _raise_shifted(zr, zi, first, s, fr, fi)
    vr, _ = times(wr.to(tl.float32)[None, :], wi.to(tl.float32)[None, :], qr, qi)
    tl.store(K + c * l + k, tl.sum(vr, 1), mask=k < l)


@quick_jit
def gradient_kernel(Z, W, G, OZ, OW, n, l, BN: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """∂w = sum_k ‾e^{(k - s) z} ∂K_k and ∂z = ‾w sum_k (k - s) ‾e^{(k - s) z} ∂K_k, from G (d, l)."""
    c, j = tl.program_id(0).to(tl.int64), tl.arange(0, BN)
    zr, zi, s, fr, fi = _start(Z, c, n, l, BN, ROWS)
    wr, wi = _load(W, c * n + j, j < n)
    ar, ai = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    er, ei = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for first in range(0, l, ROWS):
        k = first + tl.arange(0, ROWS)
        g = tl.load(G + c * l + k, mask=k < l, other=0.0)[:, None]
        qr, qi = _raise_shifted(zr, zi, first, s, fr, fi)
        qr, qi = qr * g, qi * g
        steps = (k[:, None] - s[None, :]).to(tl.float32)
        ar += tl.sum(qr, 0)
        ai -= tl.sum(qi, 0)
        er += tl.sum(qr * steps, 0)
        ei -= tl.sum(qi * steps, 0)
    gr, gi = against(wr, wi, er.to(tl.float64), ei.to(tl.float64))
    at, live = 2 * (c * n + j), j < n
    tl.store(OZ + at, gr, mask=live)
    tl.store(OZ + at + 1, gi, mask=live)
    tl.store(OW + at, ar.to(tl.float64), mask=live)
    tl.store(OW + at + 1, ai.to(tl.float64), mask=live)


def response(z: Tensor, w: Tensor, length: int) -> Tensor:
    """K (d, length) in float32 of z and w (d, n, 2) in float64, as real pairs."""
    d, n, _ = z.shape
    K = torch.empty((d, length), dtype=torch.float32, device=z.device)
    with on_device(z):
        response_kernel[(triton.cdiv(length, STRETCH), d)](z, w, K, n, length, **_sizes(n), num_warps=4)
    return K


def response_gradients(z: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of z and w from that of K."""
    d, n, _ = z.shape
    of_z, of_w = torch.empty_like(z), torch.empty_like(w)
    with on_device(z):
        gradient_kernel[(d,)](z, w, g, of_z, of_w, n, g.shape[1], **_sizes(n), num_warps=8)
    return of_z, of_w


def _sizes(n: int) -> dict[str, int]:
    return {"BN": max(16, triton.next_power_of_2(n)), "ROWS": STRETCH}
