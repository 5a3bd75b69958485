"""One step of a recurrence on the CPU, compiled by numba; see `step` for what each computes.

Each function precomputes everything constant between steps and returns the step (u, h) -> (y, h'). It keeps the
tables whose addresses are passed to the kernel. Complex states are reals with interleaved real and imaginary parts.
Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from resolvent.runtime.memory import fresh_like, keep_freed_memory, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share, threads_for
from resolvent.runtime.vectors_numba import WIDTH, pair_row

Pair = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor], Pair]
FEW = 8  # sequences up to which loops beat the library's matrix products
_inner: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums are vectorised in another, fixed order


# -- a bank of single-input systems ------------------------------------------------------------------------------------


@_inner
def _real_channel(lam: Any, row: Any, u: Any, h: Any, new: Any) -> Any:
    y = u * 0
    for j in range(len(h)):
        value = lam[j] * h[j] + u
        new[j] = value
        y += row[j] * value
    return y


@_inner
def _last_pairs(first: int, re: Any, im: Any, row: Any, u: Any, h: Any, new: Any) -> Any:
    """The remaining pairs from number `first` on."""
    y = u * 0
    for j in range(first, len(h), 2):
        new[j] = re[j] * h[j] + im[j] * h[j + 1] + u
        new[j + 1] = re[j + 1] * h[j + 1] + im[j + 1] * h[j]
        y += row[j] * new[j] + row[j + 1] * new[j + 1]
    return y


def _bank_kernel(dtype: Any) -> Any:
    """One task per channel of each sequence."""
    size = np.int64(dtype.bitwidth // 8)

    def body(p: Any) -> None:
        w = carray(p, HEAD + 13)
        first, end = share(w)
        b, d, s, pairs, direct, at_re, at_im, at_row, at_D, at_u, at_h, at_y, at_new = w[HEAD:]
        re, im = carray(pointer(at_re, dtype), (d, s)), carray(pointer(at_im, dtype), (d, s))
        row, D = carray(pointer(at_row, dtype), (d, s)), carray(pointer(at_D, dtype), (d,))
        u, y = carray(pointer(at_u, dtype), (b * d,)), carray(pointer(at_y, dtype), (b * d,))
        h, new = carray(pointer(at_h, dtype), (b * d, s)), carray(pointer(at_new, dtype), (b * d, s))
        c, whole = first % d, s - s % WIDTH if pairs else 0
        for i in range(first, end):
            value = D[c] * u[i] if direct else u[i] * 0
            if whole:
                own, at = size * c * s, size * i * s
                value += pair_row(u[i], at_re + own, at_im + own, at_row + own, at_h + at, at_new + at, whole)
            if not pairs:
                value += _real_channel(re[c], row[c], u[i], h[i], new[i])
            elif whole < s:
                value += _last_pairs(whole, re[c], im[c], row[c], u[i], h[i], new[i])
            y[i] = value
            c = c + 1 if c + 1 < d else 0

    return kernel(body)


def bank(lam: Tensor, row: Tensor, D: Tensor | None) -> Step:
    d, s = row.shape
    pairs, code = lam.is_complex(), compile_kernel(_bank_kernel, row.dtype)
    re, im = _split_rotation(lam) if pairs else (lam, lam)
    kept = tables(re, im, row, row if D is None else D)
    head, at = (d, s, pairs, D is not None), addresses(*kept)

    def step(u: Tensor, h: Tensor, kept: object = kept) -> Pair:
        u, h = plain(u), plain(h)
        b, (y, new) = u.shape[0], outputs(u, h)
        run(code, (b, *head, *at, *addresses(u, h, y, new)), b * d, threads_for(b * d * s))
        return y, new

    return step


def _split_rotation(lam: Tensor) -> Pair:
    """lam (d, n) as the two rows (re, re, ...) and (-im, im, ...), each (d, 2n)."""
    re, im = lam.real, lam.imag
    return torch.stack([re, re], -1).flatten(1), torch.stack([-im, im], -1).flatten(1)


# -- one system with many inputs and outputs ---------------------------------------------------------------------------


@_inner
def dot(x: Any, y: Any) -> Any:
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
                new[i, j] = lam[j] * re - lam[j + 1] * im + dot(W_in[j], u[i])
                new[i, j + 1] = lam[j] * im + lam[j + 1] * re + dot(W_in[j + 1], u[i])
            for c in range(d):
                y[i, c] = dot(W_out[c], new[i]) + D[c] * u[i, c]

    return kernel(body)


def mimo(lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor) -> Step:
    s, d = W_in.shape
    code = compile_kernel(_mimo_kernel, W_in.dtype)
    kept = tables(lam, W_in, W_out, D)
    at, (lam, W_in, W_out, D) = addresses(*kept), kept

    def few(u: Tensor, h: Tensor) -> Pair:
        u, h = plain(u), plain(h)
        b, (y, new) = u.shape[0], outputs(u, h)
        run(code, (b, d, s, *at, *addresses(u, h, y, new)), b, threads_for(b * d * s))
        return y, new

    def step(u: Tensor, h: Tensor) -> Pair:
        if u.shape[0] <= FEW:
            return few(u, h)
        driven = torch.mm(u, W_in.mT, out=u.new_empty(u.shape[0], s))  # with `out`, which autocast ignores
        new = torch.addcmul(torch.view_as_complex(driven.view(-1, s // 2, 2)), lam, h)
        return (u * D).addmm_(torch.view_as_real(new).view(-1, s), W_out.mT), new

    return step


# -- shared ------------------------------------------------------------------------------------------------------------


@cache
def compile_kernel(make: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    keep_freed_memory()
    return compile_for(make, dtype)


def tables(*given: Tensor) -> list[Tensor]:
    """Copies, whose memory stays valid as long as its address is used, whatever happens to a parameter."""
    return [plain(t.detach()) for t in given]


def addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def outputs(u: Tensor, h: Tensor) -> Pair:
    """Arrays for y and h'; u and h are contiguous."""
    return torch.empty_like(u), fresh_like(h)
