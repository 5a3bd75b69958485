"""Mamba's selective step on the CPU, compiled by numba; see `step` for what it computes.

The projections that select dt, B and C run inside the kernel, which saves a torch call each; if there is much
to project, the library's matrix products are worth their calls.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor
from torch.nn import functional as F

from resolvent.ops.step.numba import Pair, Step, addresses, compile_kernel, dot, outputs, tables
from resolvent.runtime.exp_numba import exp, softplus
from resolvent.runtime.memory import plain
from resolvent.runtime.team import HEAD, kernel, pointer, run, share, threads_for
from resolvent.runtime.vectors_numba import WIDTH, driven_row

FEW = 32768  # inputs, b d, up to which the kernel projects them itself; measured for d = 128 to 2048
_inner: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums are vectorised in another, fixed order


@_inner
def _select(x_proj: Any, dt_proj: Any, dt_bias: Any, u: Any, seen: Any, dt: Any) -> None:
    """seen = x_proj u and dt = softplus(dt_bias + s dt_proj) for one sequence; dt_proj is (r, d)."""
    for k in range(len(seen)):
        seen[k] = dot(x_proj[k], u)
    dt[:] = dt_bias
    for k in range(len(dt_proj)):
        for c in range(len(dt)):
            dt[c] += seen[k] * dt_proj[k, c]
    for c in range(len(dt)):
        dt[c] = softplus(dt[c])


@_inner
def _decay(exponent: Any, h: Any) -> None:
    """exponent <- exp(exponent) h, over all channels at once: one channel has too few states to vectorise."""
    for j in range(len(h)):
        exponent[j] = exp(exponent[j]) * h[j]


@_inner
def _last_states(first: int, drive: Any, BC: Any, new: Any) -> Any:
    """h' = h + drive B and C . h' for the states from `first` on, after the last full vector."""
    n, y = len(new), drive * 0
    for j in range(first, n):
        value = new[j] + drive * BC[j]
        new[j] = value
        y += value * BC[n + j]
    return y


@_inner
def _sequence(dt: Any, A: Any, D: Any, BC: Any, u: Any, h: Any, new: Any, y: Any) -> None:
    d, n = h.shape
    for c in range(d):
        for j in range(n):
            new[c, j] = dt[c] * A[c, j]
    _decay(new.reshape(d * n), h.reshape(d * n))
    whole, at, size = n - n % WIDTH, BC.ctypes.data, BC.itemsize
    for c in range(d):
        drive, value = dt[c] * u[c], D[c] * u[c]
        if whole:
            value += driven_row(drive, at, at + size * n, new.ctypes.data + size * c * n, whole)
        if whole < n:
            value += _last_states(whole, drive, BC, new[c])
        y[c] = value


def _kernel(dtype: Any) -> Any:
    """One task per sequence. The selection is read if given, otherwise computed."""

    def body(p: Any) -> None:
        w = carray(p, HEAD + 16)
        first, end = share(w)
        b, d, n, r, at_in, at_proj, at_bias, at_A, at_D, given, at_seen, at_dt, at_u, at_h, at_y, at_new = w[HEAD:]
        x_proj, dt_proj = carray(pointer(at_in, dtype), (r + 2 * n, d)), carray(pointer(at_proj, dtype), (r, d))
        dt_bias, D = carray(pointer(at_bias, dtype), (d,)), carray(pointer(at_D, dtype), (d,))
        A = carray(pointer(at_A, dtype), (d, n))
        u, y = carray(pointer(at_u, dtype), (b, d)), carray(pointer(at_y, dtype), (b, d))
        h, new = carray(pointer(at_h, dtype), (b, d, n)), carray(pointer(at_new, dtype), (b, d, n))
        seen, dt = np.empty(r + 2 * n, dtype), np.empty(d, dtype)
        all_seen, all_dt = carray(pointer(at_seen, dtype), (b, r + 2 * n)), carray(pointer(at_dt, dtype), (b, d))
        for i in range(first, end):
            if given:
                _sequence(all_dt[i], A, D, all_seen[i, r:], u[i], h[i], new[i], y[i])
            else:
                _select(x_proj, dt_proj, dt_bias, u[i], seen, dt)
                _sequence(dt, A, D, seen[r:], u[i], h[i], new[i], y[i])

    return kernel(body)


def selective(x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor, A: Tensor, D: Tensor) -> Step:
    (d, r), n = dt_proj.shape, A.shape[1]
    code, kept = compile_kernel(_kernel, A.dtype), tables(x_proj, dt_proj.mT, dt_bias, A, D)
    head = d, n, r, *addresses(*kept)

    def step(u: Tensor, h: Tensor) -> Pair:
        u, h = plain(u), plain(h)
        b, (y, new) = u.shape[0], outputs(u, h)
        seen, dt = (u, u) if b * d <= FEW else _project(u, *kept[:3])
        settings = b, *head, b * d > FEW, *addresses(seen, dt, u, h, y, new)
        run(code, settings, b, threads_for(4 * b * d * n))
        return y, new

    return step


def _project(u: Tensor, x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor) -> Pair:
    """`_select` by the library, for all sequences: with `out`, which autocast ignores."""
    seen = torch.mm(u, x_proj.mT, out=u.new_empty(u.shape[0], x_proj.shape[0]))
    return seen, F.softplus(torch.addmm(dt_bias, seen[:, : dt_proj.shape[0]], dt_proj, out=torch.empty_like(u)))
