"""`carry` and its adjoint on the CPU, compiled by numba. Tasks are the sequences of all channels.

Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from resolvent.ops.linear_scan.numba import in_vectors
from resolvent.ops.linear_scan.numba_rows import advance, handed_on
from resolvent.ops.linear_scan.rows import sum_to
from resolvent.runtime.jit import PARTIAL, Array, address, jit
from resolvent.runtime.memory import fresh_like, plain
from resolvent.runtime.team import HEAD, compile_for, kernel, pointer, run, share
from resolvent.runtime.threads import threads_for


@jit
def _forward_task(i: int, c: int, a: Array, z: Array, h0: Array, before: Array, end: Array) -> None:
    m, n = z.shape[1:]
    whole = in_vectors(z, n)
    for j in range(n):
        before[i, 0, j] = h0[i, 0, j]
    for k in range(m):
        last = k == m - 1
        if whole:
            out = address(end, i, 0, 0) if last else address(before, i, k + 1, 0)
            advance(z, (address(a, c, 0, 0), address(z, i, k, 0), address(before, i, k, 0), out), whole)
        for j in range(whole, n):
            value = a[c, 0, j] * before[i, k, j] + z[i, k, j]
            if last:
                end[i, 0, j] = value
            else:
                before[i, k + 1, j] = value


@jit
def _backward_task(i: int, c: int, a: Array, g: Array, gamma: Array, before: Array, ga: Array) -> None:
    """gamma (., 1, n) comes as the gradient of the last state and leaves as that of the first."""
    m, n = g.shape[1:]
    whole = in_vectors(g, n)
    part = np.zeros((1, 1, n), g.dtype)
    for j in range(n):
        ga[i, 0, j] = 0
    for k in range(m - 1, -1, -1):
        if whole:
            at = address(g, i, k, 0), address(a, c, 0, 0), address(before, i, k, 0)
            handed_on(g, (*at, address(gamma, i, 0, 0), address(part, 0, 0, 0)), whole)
        for j in range(whole, n):
            x = gamma[i, 0, j]
            part[0, 0, j] += x * np.conj(before[i, k, j])
            gamma[i, 0, j] = np.conj(a[c, 0, j]) * x + g[i, k, j]
            g[i, k, j] = x
        if k % PARTIAL == 0:
            for j in range(n):
                ga[i, 0, j] += part[0, 0, j]
                part[0, 0, j] = 0


def _forward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 9)
        first, end = share(w)
        d, b, m, n, at_a, at_z, at_h0, at_before, at_end = w[HEAD:]
        a, z = carray(pointer(at_a, dtype), (d, 1, n)), carray(pointer(at_z, dtype), (d * b, m, n))
        h0, last = carray(pointer(at_h0, dtype), (d * b, 1, n)), carray(pointer(at_end, dtype), (d * b, 1, n))
        before = carray(pointer(at_before, dtype), (d * b, m, n))
        for i in range(first, end):
            _forward_task(i, i // b, a, z, h0, before, last)

    return kernel(body)


def _backward_kernel(dtype: Any) -> Any:
    def body(p: Any) -> None:
        w = carray(p, HEAD + 9)
        first, end = share(w)
        d, b, m, n, at_a, at_g, at_gamma, at_before, at_ga = w[HEAD:]
        a, g = carray(pointer(at_a, dtype), (d, 1, n)), carray(pointer(at_g, dtype), (d * b, m, n))
        gamma, ga = carray(pointer(at_gamma, dtype), (d * b, 1, n)), carray(pointer(at_ga, dtype), (d * b, 1, n))
        before = carray(pointer(at_before, dtype), (d * b, m, n))
        for i in range(first, end):
            _backward_task(i, i // b, a, g, gamma, before, ga)

    return kernel(body)


def carry(a: Tensor, z: Tensor, h0: Tensor, before: Tensor, end: Tensor) -> None:
    (d, b, m, _), n = z.shape, a.shape[1]
    given = [plain(t) for t in (a, z, h0)]
    _check_contiguous(before, end)
    at = [t.data_ptr() for t in (*given, before, end)]
    run(compile_for(_forward_kernel, a.dtype), (d, b, m, n, *at), d * b, threads_for(z.numel()))


def carry_backward(a: Tensor, g: Tensor, g_end: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    (d, b, m, _), n = g.shape, a.shape[1]
    _check_contiguous(g)
    gamma = g_end.clone(memory_format=torch.contiguous_format)
    a, states = plain(a), g if before is None else plain(before)  # without states ∂a is made from g, and dropped
    ga = fresh_like(gamma)
    at = [t.data_ptr() for t in (a, g, gamma, states, ga)]
    run(compile_for(_backward_kernel, a.dtype), (d, b, m, n, *at), d * b, threads_for(g.numel()))
    if before is None:
        return gamma, None
    rows = torch.view_as_complex(ga.view(d, b, n, 2)) if a.is_complex() else ga
    return gamma, sum_to(rows, torch.Size((d, 1, n)))[:, 0]


def _check_contiguous(*outputs: Tensor) -> None:
    if not all(t.is_contiguous() for t in outputs):
        raise ValueError("carry: expected arrays to write to that are contiguous; hand over whole channels.")
