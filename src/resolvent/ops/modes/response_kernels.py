"""From a diagonal layer's parameters to its impulse response K (d, l), and the gradients: one kernel each."""

from __future__ import annotations

import triton.language as tl

from resolvent.ops.modes.triton_kernels import against, hand_on, modes, power, powers, times
from resolvent.runtime.launch import quick_jit


@quick_jit
def response_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, P3, P4, D, K, n, l, LARGEST,
    KIND: tl.constexpr, STEPS: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """K (d, l) = Re sum_n w lam^k, with D = 0; a program has ROWS steps of one channel."""
    c, j, first = tl.program_id(1).to(tl.int64), tl.arange(0, BN), tl.program_id(0) * ROWS
    k = first + tl.arange(0, ROWS)
    zr, zi, wr, wi = modes(P0, P1, P2, P3, P4, c, n, j, j < n, KIND, STEPS)
    zr = tl.minimum(zr, LARGEST)
    fr, fi = power(zr, zi, tl.arange(0, ROWS))
    qr, qi = powers(zr, zi, first, fr, fi)
    vr, _ = times(wr.to(tl.float32)[None, :], wi.to(tl.float32)[None, :], qr, qi)
    kernel = tl.sum(tl.where((j < n)[None, :], vr, 0.0), 1)
    if D is not None:
        kernel += tl.where(k == 0, tl.load(D + c), 0.0)
    tl.store(K + c * l + k, kernel, mask=k < l)


@quick_jit
def response_gradient_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, P3, P4, G, O0, O1, O2, O3, O4, OD, n, l, LARGEST,
    KIND: tl.constexpr, STEPS: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The parameters' gradients from those of K, G (d, l)."""
    c, j, i = tl.program_id(0).to(tl.int64), tl.arange(0, BN), tl.arange(0, ROWS)
    live = j < n
    zr, zi, wr, wi = modes(P0, P1, P2, P3, P4, c, n, j, live, KIND, STEPS)
    hr = tl.minimum(zr, LARGEST)
    fr, fi = power(hr, zi, i)
    # of w, sum ‾lam^k G; of z, sum k ‾lam^k G
    ar, ai = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    er, ei = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for first in range(0, l, ROWS):
        k = first + i
        g = tl.load(G + c * l + k, mask=k < l, other=0.0)[:, None]
        qr, qi = powers(hr, zi, first, fr, fi)
        steps = k.to(tl.float32)[:, None]
        ar += tl.sum(qr * g, 0)
        ai -= tl.sum(qi * g, 0)
        er += tl.sum(qr * g * steps, 0)
        ei -= tl.sum(qi * g * steps, 0)
    gzr, gzi = against(wr, wi, er.to(tl.float64), ei.to(tl.float64))
    hand_on(
        P0, P1, P2, P3, P4, O0, O1, O2, O3, O4, c, n, j, live, zr, zi, tl.where(zr <= LARGEST, gzr, 0.0), gzi,
        ar.to(tl.float64), ai.to(tl.float64), KIND, STEPS,
    )  # fmt: skip
    if OD is not None:
        tl.store(OD + c, tl.load(G + c * l))
