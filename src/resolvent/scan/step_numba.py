"""One step of a recurrence on the CPU, compiled by numba; see `step` for what each computes.

Complex states are met as their reals, real and imaginary part in turn. Tasks are sequences, or channels of one.
Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from numba import carray, njit, types
from torch import Tensor
from torch.nn.functional import linear, softplus

from resolvent.scan.exp_numba import exp
from resolvent.scan.memory import fresh
from resolvent.scan.team import HEAD, kernel, pointer, run, share
from resolvent.scan.workers import threads_for

Pair = tuple[Tensor, Tensor]
_TYPES = {torch.float32: types.float32, torch.float64: types.float64}
_inner: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums vectorise in another, fixed, order


@_inner
def _complex_channel(lam: Any, row: Any, u: Any, h: Any, new: Any) -> Any:
    for j in range(len(h) // 2):  # two loops: in one, the sum keeps the compiler from using vectors
        re, im = h[2 * j], h[2 * j + 1]
        new[2 * j] = lam[2 * j] * re - lam[2 * j + 1] * im + u
        new[2 * j + 1] = lam[2 * j] * im + lam[2 * j + 1] * re
    y = u * 0
    for j in range(len(h)):
        y += row[j] * new[j]
    return y


@_inner
def _real_channel(lam: Any, row: Any, u: Any, h: Any, new: Any) -> Any:
    y = u * 0
    for j in range(len(h)):
        value = lam[j] * h[j] + u
        new[j] = value
        y += row[j] * value
    return y


def _bank_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 12)
        first, end = share(w)
        b, d, s, pairs, direct, at_lam, at_row, at_D, at_u, at_h, at_y, at_new = w[HEAD:]
        lam, row = carray(pointer(at_lam, dtype), (d, s)), carray(pointer(at_row, dtype), (d, s))
        D, u = carray(pointer(at_D, dtype), (d,)), carray(pointer(at_u, dtype), (b, d))
        h, new = carray(pointer(at_h, dtype), (b, d, s)), carray(pointer(at_new, dtype), (b, d, s))
        y = carray(pointer(at_y, dtype), (b, d))
        for i in range(first, end):
            for c in range(d):
                if pairs:
                    value = _complex_channel(lam[c], row[c], u[i, c], h[i, c], new[i, c])
                else:
                    value = _real_channel(lam[c], row[c], u[i, c], h[i, c], new[i, c])
                y[i, c] = value + D[c] * u[i, c] if direct else value

    return kernel(body)


@_inner
def _dot(x: Any, y: Any) -> Any:
    total = x[0] * 0
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


def _mimo_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 11)
        first, end = share(w)
        b, d, s, at_lam, at_in, at_out, at_D, at_u, at_h, at_y, at_new = w[HEAD:]
        lam, D = carray(pointer(at_lam, dtype), (s,)), carray(pointer(at_D, dtype), (d,))
        W_in, W_out = carray(pointer(at_in, dtype), (s, d)), carray(pointer(at_out, dtype), (d, s))
        u, h = carray(pointer(at_u, dtype), (b, d)), carray(pointer(at_h, dtype), (b, s))
        y, new = carray(pointer(at_y, dtype), (b, d)), carray(pointer(at_new, dtype), (b, s))
        for i in range(first, end):
            for j in range(0, s, 2):
                re, im = h[i, j], h[i, j + 1]
                new[i, j] = lam[j] * re - lam[j + 1] * im + _dot(W_in[j], u[i])
                new[i, j + 1] = lam[j] * im + lam[j + 1] * re + _dot(W_in[j + 1], u[i])
            for c in range(d):
                y[i, c] = _dot(W_out[c], new[i]) + D[c] * u[i, c]

    return kernel(body)


@_inner
def _decay(exponent: Any, h: Any) -> None:
    """exponent <- exp(exponent) h, over all channels at once: the states of one are too few for vectors."""
    for j in range(len(h)):
        exponent[j] = exp(exponent[j]) * h[j]


@_inner
def _driven(drive: Any, BC: Any, new: Any) -> Any:
    n, y = len(new), drive * 0
    for j in range(n):
        value = new[j] + drive * BC[j]
        new[j] = value
        y += value * BC[n + j]
    return y


@_inner
def _selective_sequence(dt: Any, A: Any, D: Any, BC: Any, u: Any, h: Any, new: Any, y: Any) -> None:
    d, n = h.shape
    for c in range(d):
        for j in range(n):
            new[c, j] = dt[c] * A[c, j]
    _decay(new.reshape(d * n), h.reshape(d * n))
    for c in range(d):
        y[c] = _driven(dt[c] * u[c], BC, new[c]) + D[c] * u[c]


def _selective_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 12)
        first, end = share(w)
        b, d, n, r, at_dt, at_A, at_D, at_seen, at_u, at_h, at_y, at_new = w[HEAD:]
        dt, seen = carray(pointer(at_dt, dtype), (b, d)), carray(pointer(at_seen, dtype), (b, r + 2 * n))
        A, D = carray(pointer(at_A, dtype), (d, n)), carray(pointer(at_D, dtype), (d,))
        h, new = carray(pointer(at_h, dtype), (b, d, n)), carray(pointer(at_new, dtype), (b, d, n))
        u, y = carray(pointer(at_u, dtype), (b, d)), carray(pointer(at_y, dtype), (b, d))
        for i in range(first, end):
            _selective_sequence(dt[i], A, D, seen[i, r:], u[i], h[i], new[i], y[i])

    return kernel(body)


@cache
def _compiled(make: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    return make(_TYPES[dtype])


def _at(*tensors: Tensor) -> list[int]:
    return [t.data_ptr() for t in tensors]


def bank_step(lam: Tensor, row: Tensor, D: Tensor | None, u: Tensor, h: Tensor) -> Pair:
    (b, d), s = u.shape, row.shape[1]
    lam, row, u, h = lam.contiguous(), row.contiguous(), u.contiguous(), h.contiguous()
    y, new = torch.empty_like(u), fresh(h.shape, h)
    at = _at(lam, row, u if D is None else D.contiguous(), u, h, y, new)
    flags = [h.is_complex(), D is not None]
    run(_compiled(_bank_kernel, u.dtype), [b, d, s, *flags, *at], b, threads_for(b * d * s))
    return y, new


def mimo_step(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor, u: Tensor, h: Tensor) -> Pair:
    (b, d), s = u.shape, W_in.shape[0]
    given = [t.contiguous() for t in (lam, W_in, W_out, D, u, h)]
    y, new = torch.empty_like(given[4]), torch.empty_like(given[5])
    run(_compiled(_mimo_kernel, u.dtype), [b, d, s, *_at(*given, y, new)], b, threads_for(b * d * s))
    return y, new


def selective_step(weights: tuple[Tensor, Tensor, Tensor, Tensor], seen: Tensor, u: Tensor, h: Tensor) -> Pair:
    dt_proj, dt_bias, A, D = weights
    (b, d), n, r = u.shape, h.shape[2], dt_proj.shape[1]
    dt = softplus(linear(seen[:, :r], dt_proj, dt_bias))  # torch's is vectorised
    given = [t.contiguous() for t in (dt, A, D, seen, u, h)]
    y, new = torch.empty_like(given[4]), fresh(h.shape, h)
    run(_compiled(_selective_kernel, u.dtype), [b, d, n, r, *_at(*given, y, new)], b, threads_for(4 * b * d * n))
    return y, new
