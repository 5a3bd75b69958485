"""From the parameters of S5 and LRU to their tables, and the gradients: one kernel each, one program per state.

With z = log lam_bar, f the gain of the input in units of dt, and B, C in real pairs, all of z in float64:

    S5    z = lam dt,              f = (e^z - 1)/z, bilinear (1 - z/2)^-1         lam_bar = e^z, held inside the disc
    LRU   z = -nu + i theta,       f = 1, dt = gamma                              W_in = f dt B,    W_out = s ‾C

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from resolvent.ops.modes.triton_kernels import growth, times
from resolvent.runtime.launch import on_device, quick_jit

ZOH, BILINEAR, LRU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LARGEST_REAL, LARGEST_LOG = tl.constexpr(-1e-4), tl.constexpr(20.0)  # `layers.s5`, `layers.lru`
LOWEST, HIGHEST = tl.constexpr(-40.0), tl.constexpr(30.0)  # `ssm.discretise.positive`
LARGEST = tl.constexpr(1.0 - 8 * torch.finfo(torch.float32).eps)  # `layers.mimo.inside_disc`


def tables(parameters: Sequence[Tensor], option: str, *size: int) -> list[Tensor]:
    """lam_bar (p, 2), W_in (2p, d) and W_out (d, 2p) of float32 parameters, the last of them B (p, d, 2) and C."""
    own, B, C, how = _unpack(parameters, option)
    made = [B.new_empty(shape) for shape in _shapes(B)]
    with on_device(B):
        tables_kernel[(len(B),)](*own, B, C, *made, *B.shape[:2], **how)
    return made


def slopes(parameters: Sequence[Tensor], g: Sequence[Tensor | None], option: str, *size: int) -> list[Tensor]:
    """The parameters' gradients from those of the tables."""
    own, B, _, how = _unpack(parameters, option)
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in parameters]
    given = [B.new_zeros(s) if t is None else t.contiguous() for t, s in zip(g, _shapes(B), strict=True)]
    with on_device(B):
        slopes_kernel[(len(B),)](*own, B, *given, *[*found[:-2], None][:3], *found[-2:], *B.shape[:2], **how)
    return found


def _shapes(B: Tensor) -> list[tuple[int, int]]:
    p, d = B.shape[:2]
    return [(p, 2), (2 * p, d), (d, 2 * p)]


def _unpack(parameters: Sequence[Tensor], option: str) -> tuple[list[Any], Tensor, Tensor, dict[str, Any]]:
    *own, B, C = (t.detach().contiguous() for t in parameters)
    words, scale = option.split()[:-1], float(option.split()[-1])
    kind = LRU if len(own) == 3 else BILINEAR if "bilinear" in words else ZOH
    held = kind is LRU or "clip" in words
    size = min(256, triton.next_power_of_2(B.shape[1]))
    return [*own, None][:3], B, C, {"SCALE": scale, "KIND": kind.value, "HELD": held, "BD": size, "num_warps": 2}


@triton.jit
def _load(P, at):  # type: ignore[no-untyped-def]
    return tl.load(P + at).to(tl.float64)


@triton.jit
def _cap(x, most):  # type: ignore[no-untyped-def]
    """x limited to `most`; NaN stays NaN."""
    return tl.where(x > most, most, x)


@triton.jit
def _step(P0, P1, P2, j, KIND: tl.constexpr, HELD: tl.constexpr):  # type: ignore[no-untyped-def]
    """lam_bar before limiting and its derivative in z, f and its derivative in z, dt, and two numbers that form z."""
    if KIND == LRU:
        ar, ai = tl.exp(_cap(_load(P0, j), LARGEST_LOG)), tl.exp(_cap(_load(P1, j), LARGEST_LOG))
        dt = tl.exp(_cap(_load(P2, j), LARGEST_LOG))
        er, ei = tl.exp(-ar) * tl.cos(ai), tl.exp(-ar) * tl.sin(ai)
        return er, ei, er, ei, dt * 0.0 + 1.0, dt * 0.0, dt * 0.0, dt * 0.0, dt, ar, ai
    else:
        ar, ai, log = _load(P0, 2 * j), _load(P0, 2 * j + 1), _load(P1, j)
        if HELD:
            ar = _cap(ar, LARGEST_REAL)
        dt = tl.exp(-_cap(-_cap(log, HIGHEST), -LOWEST))
        zr, zi = ar * dt, ai * dt
        if KIND == ZOH:
            er, ei = tl.exp(zr) * tl.cos(zi), tl.exp(zr) * tl.sin(zi)
            fr, fi, sr, si = growth(zr, zi)
            return er, ei, er, ei, fr, fi, sr, si, dt, ar, ai
        else:
            nr, ni = 1.0 - zr / 2, zi / 2
            fr, fi = nr / (nr * nr + ni * ni), ni / (nr * nr + ni * ni)
            er, ei = times(1.0 + zr / 2, zi / 2, fr, fi)
            ur, ui = times(fr, fi, fr, fi)
            return er, ei, ur, ui, fr, fi, ur / 2, ui / 2, dt, ar, ai


@quick_jit
def tables_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, B, C, LAM, W_IN, W_OUT, p, d,
    SCALE: tl.constexpr, KIND: tl.constexpr, HELD: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0).to(tl.int64)
    er, ei, _, _, fr, fi, _, _, dt, _, _ = _step(P0, P1, P2, j, KIND, HELD)
    if HELD:
        keep = LARGEST / tl.maximum(tl.sqrt(er * er + ei * ei), LARGEST)
        er, ei = keep * er, keep * ei
    tl.store(LAM + 2 * j, er.to(tl.float32))
    tl.store(LAM + 2 * j + 1, ei.to(tl.float32))
    gr, gi = (fr * dt).to(tl.float32), (fi * dt).to(tl.float32)
    for first in range(0, d, BD):
        c = first + tl.arange(0, BD)
        live = c < d
        at, out = (j * d + c) * 2, c * (2 * p) + 2 * j
        br, bi = tl.load(B + at, mask=live, other=0.0), tl.load(B + at + 1, mask=live, other=0.0)
        tl.store(W_IN + 2 * j * d + c, gr * br - gi * bi, mask=live)
        tl.store(W_IN + (2 * j + 1) * d + c, gr * bi + gi * br, mask=live)
        tl.store(W_OUT + out, SCALE * tl.load(C + out, mask=live), mask=live)
        tl.store(W_OUT + out + 1, -SCALE * tl.load(C + out + 1, mask=live), mask=live)


@quick_jit
def slopes_kernel(  # type: ignore[no-untyped-def]
    P0, P1, P2, B, G_LAM, G_IN, G_OUT, O0, O1, O2, OB, OC, p, d,
    SCALE: tl.constexpr, KIND: tl.constexpr, HELD: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0).to(tl.int64)
    er, ei, ur, ui, fr, fi, sr, si, dt, ar, ai = _step(P0, P1, P2, j, KIND, HELD)
    gr, gi = (fr * dt).to(tl.float32), (fi * dt).to(tl.float32)
    tr, ti = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)  # of f dt: ‾B G
    for first in range(0, d, BD):
        c = first + tl.arange(0, BD)
        live = c < d
        at, out = (j * d + c) * 2, c * (2 * p) + 2 * j
        br, bi = tl.load(B + at, mask=live, other=0.0), tl.load(B + at + 1, mask=live, other=0.0)
        xr = tl.load(G_IN + 2 * j * d + c, mask=live, other=0.0)
        xi = tl.load(G_IN + (2 * j + 1) * d + c, mask=live, other=0.0)
        tr += br * xr + bi * xi
        ti += br * xi - bi * xr
        tl.store(OB + at, gr * xr + gi * xi, mask=live)
        tl.store(OB + at + 1, gr * xi - gi * xr, mask=live)
        tl.store(OC + out, SCALE * tl.load(G_OUT + out, mask=live), mask=live)
        tl.store(OC + out + 1, -SCALE * tl.load(G_OUT + out + 1, mask=live), mask=live)
    tr, ti = tl.sum(tr, 0).to(tl.float64), tl.sum(ti, 0).to(tl.float64)
    g_dt = fr * tr + fi * ti
    zr, zi = dt * (sr * tr + si * ti), dt * (sr * ti - si * tr)
    xr, xi = _load(G_LAM, 2 * j), _load(G_LAM, 2 * j + 1)
    if HELD:  # a limited modulus has zero derivative
        size = tl.maximum(tl.sqrt(er * er + ei * ei), LARGEST)
        along = tl.where(size > LARGEST, (er * xr + ei * xi) / (size * size), 0.0)
        xr, xi = LARGEST / size * (xr - along * er), LARGEST / size * (xi - along * ei)
    zr += ur * xr + ui * xi
    zi += ur * xi - ui * xr
    if KIND == LRU:
        _store(O0, j, -zr * ar, _load(P0, j) <= LARGEST_LOG)
        _store(O1, j, zi * ai, _load(P1, j) <= LARGEST_LOG)
        _store(O2, j, g_dt * dt, _load(P2, j) <= LARGEST_LOG)
    else:
        log = _load(P1, j)
        free = tl.where(_load(P0, 2 * j) <= LARGEST_REAL, zr, 0.0) if HELD else zr
        tl.store(O0 + 2 * j, (dt * free).to(tl.float32))
        tl.store(O0 + 2 * j + 1, (dt * zi).to(tl.float32))
        _store(O1, j, dt * (g_dt + ar * zr + ai * zi), (log >= LOWEST) & (log <= HIGHEST))


@triton.jit
def _store(O, at, x, moves):  # type: ignore[no-untyped-def]
    """Store the gradient of a parameter; zero where it is clamped."""
    tl.store(O + at, tl.where(moves, x, 0.0).to(tl.float32))
