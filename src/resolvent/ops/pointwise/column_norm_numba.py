"""`column_norm` on the CPU, compiled by numba: each tile of columns stays in the cache from first to last.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from torch import Tensor

from resolvent.runtime.jit import Array, jit
from resolvent.runtime.memory import fresh, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share
from resolvent.runtime.threads import threads_for

TILE = 128  # columns at a time: those of 64 channels fill a core's first cache


@jit
def _normalise_columns(z: Array, r: Array, p: Array, out: Array, rstd: Array, skip: int, lo: int, hi: int) -> None:
    """The columns [lo, hi); p holds bias, gamma, beta and, in its last row, eps. Rows as views of their own: only of
    them does the compiler know that their numbers lie side by side."""
    d, n = z.shape[0], hi - lo
    total, square, scale = np.zeros(n, z.dtype), np.zeros(n, z.dtype), rstd[lo:hi]
    for c in range(d):
        bias, row, more = p[0, c], z[c, lo:hi], r[c, lo:hi]
        if skip:
            for j in range(n):
                row[j] += bias + more[j]
                total[j] += row[j]
        else:
            for j in range(n):
                row[j] += bias
                total[j] += row[j]
    for j in range(n):
        total[j] /= d
    for c in range(d):
        row = z[c, lo:hi]
        for j in range(n):
            row[j] -= total[j]
            square[j] += row[j] * row[j]
    for j in range(n):
        scale[j] = 1 / np.sqrt(square[j] / d + p[3, 0])
    for c in range(d):
        row, new, gamma, beta = z[c, lo:hi], out[c, lo:hi], p[1, c], p[2, c]
        for j in range(n):
            row[j] *= scale[j]
            new[j] = row[j] * gamma + beta


@jit
def _differentiate_columns(g: Array, unit: Array, gamma: Array, rstd: Array, gz: Array, lo: int, hi: int) -> None:
    d, n = g.shape[0], hi - lo
    mean, along, scale = np.zeros(n, g.dtype), np.zeros(n, g.dtype), rstd[lo:hi]
    for c in range(d):
        row, own, factor = g[c, lo:hi], unit[c, lo:hi], gamma[c]
        for j in range(n):
            mean[j] += row[j] * factor
            along[j] += row[j] * factor * own[j]
    for j in range(n):
        mean[j] /= d
        along[j] /= d
    for c in range(d):
        row, own, new, factor = g[c, lo:hi], unit[c, lo:hi], gz[c, lo:hi], gamma[c]
        for j in range(n):
            new[j] = (row[j] * factor - mean[j] - own[j] * along[j]) * scale[j]


def _forward(dtype: Any) -> Any:
    def body(w: Any) -> None:
        t = carray(w, HEAD + 8)
        first, end = share(t)
        d, m, skip, at_z, at_r, at_p, at_out, at_rstd = t[HEAD:]
        z, r = carray(pointer(at_z, dtype), (d, m)), carray(pointer(at_r, dtype), (d, m))
        p, out = carray(pointer(at_p, dtype), (4, d)), carray(pointer(at_out, dtype), (d, m))
        rstd = carray(pointer(at_rstd, dtype), (m,))
        for tile in range(first, end):
            lo, hi = tile * TILE, min(tile * TILE + TILE, m)
            _normalise_columns(z, r, p, out, rstd, skip, lo, hi)

    return kernel(body)


def _backward(dtype: Any) -> Any:
    def body(w: Any) -> None:
        t = carray(w, HEAD + 7)
        first, end = share(t)
        d, m, at_g, at_unit, at_gamma, at_rstd, at_gz = t[HEAD:]
        g, unit = carray(pointer(at_g, dtype), (d, m)), carray(pointer(at_unit, dtype), (d, m))
        gamma, rstd = carray(pointer(at_gamma, dtype), (d,)), carray(pointer(at_rstd, dtype), (m,))
        gz = carray(pointer(at_gz, dtype), (d, m))
        for tile in range(first, end):
            lo, hi = tile * TILE, min(tile * TILE + TILE, m)
            _differentiate_columns(g, unit, gamma, rstd, gz, lo, hi)

    return kernel(body)


def normalise(z: Tensor, r: Tensor | None, affine: Tensor) -> tuple[Tensor, Tensor]:
    d, m = z.shape
    if not z.is_contiguous():
        raise ValueError(f"column norm: expected z in one piece, got strides {z.stride()}; use z.contiguous().")
    out, rstd, skip = fresh((d, m), z), fresh((m,), z), z if r is None else plain(r)
    sizes, p = (d, m, int(r is not None)), plain(affine)
    places = [t.data_ptr() for t in (z, skip, p, out, rstd)]
    run(compile_for(_forward, z.dtype), (*sizes, *places), -(-m // TILE), threads_for(3 * z.numel()))
    return out, rstd


def slope(g: Tensor, unit: Tensor, rstd: Tensor, gamma: Tensor) -> Tensor:
    d, m = g.shape
    g, unit, gamma, rstd = plain(g), plain(unit), plain(gamma), plain(rstd)
    gz = fresh((d, m), g)
    places = [t.data_ptr() for t in (g, unit, gamma, rstd, gz)]
    run(compile_for(_backward, g.dtype), (d, m, *places), -(-m // TILE), threads_for(2 * g.numel()))
    return gz
