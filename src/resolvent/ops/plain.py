"""The operations in torch's own real arithmetic, traceable for any length, for exchange formats.

    with plain_operations():
        torch.export.export(model, ...)

traces a model to a graph without our operators and without complex numbers. Recurrences run in log2 of the longest
length by doubled strides, h_t <- h_t + A^s h_{t-s} for s = 1, 2, 4, ..., so that no loop depends on the length; the
longest length is that of the declared dimension (`Dim("length", max=...)`), or MOST. Values, and derivatives of every
order, are those of the operations. In `frozen()` tables are constants of the graph, and their computation
(exponentials, factorisations, float64) is not traced. Outside tracing the context has no effect. The same operations
run where a traced pass cannot contain an operator (`refuses_operators`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.runtime.dispatch import push
from resolvent.runtime.transforms import refuses_operators

MOST = 1 << 16  # steps of a length without a declared maximum
_chosen: list[bool] = []


def plain_operations() -> AbstractContextManager[None]:
    """Trace operations as torch's own real ones instead of one opaque node each."""
    return push(_chosen, True)


def is_chosen() -> bool:
    return bool(_chosen) or refuses_operators()


def longest(length: Any) -> int:
    """The largest value of a length; for a SymInt the declared maximum."""
    if not isinstance(length, torch.SymInt):  # `torch.jit.trace` has sizes that are tensors
        return int(length)
    top = length.node.shape_env.bound_sympy(length.node.expr).upper
    return int(top) if top.is_finite and top < 1 << 40 else MOST


def strides(length: Any) -> Iterator[int]:
    """1, 2, 4, ... below the longest possible length."""
    stride, end = 1, longest(length)
    while stride < end:
        yield stride
        stride *= 2


def shift(h: Tensor, stride: int) -> Tensor:
    """h (..., l, n) moved `stride` steps later, zeros before."""
    return F.pad(h, (0, 0, stride, 0)).narrow(-2, 0, h.shape[-2])


def first_step(x: Tensor, like: Tensor) -> Tensor:
    """x (..., n) at the first step of zeros like (..., l, n)."""
    return torch.cat([x[..., None, :], torch.zeros_like(like)], -2).narrow(-2, 0, like.shape[-2])


def constant_scan(A: Tensor, v: Tensor, paired: bool) -> Tensor:
    """h_t = A h_{t-1} + v_t from zero, over axis -2 of v (..., l, s), for a diagonal A (..., 1, s), or complex in pairs
    (..., 1, s / 2, 2)."""
    h = v
    for stride in strides(v.shape[-2]):
        h = h + times(A, shift(h, stride), paired)
        A = times(A, A.flatten(-2), True).unflatten(-1, (-1, 2)) if paired else A * A
    return h


def times(A: Tensor, h: Tensor, paired: bool) -> Tensor:
    """A h for a diagonal A (..., s), or in pairs (..., s / 2, 2), and h (..., s)."""
    if not paired:
        return A * h
    z = h.unflatten(-1, (-1, 2))
    re = A[..., 0] * z[..., 0] - A[..., 1] * z[..., 1]
    im = A[..., 0] * z[..., 1] + A[..., 1] * z[..., 0]
    return torch.stack([re, im], -1).flatten(-2)


def dense_scan(P: Tensor, v: Tensor) -> Tensor:
    """h_t = h_{t-1} P + v_t from zero, over axis -2 of v (..., l, s), for P (..., s, s)."""
    h = v
    for stride in strides(v.shape[-2]):
        h = h + shift(h, stride) @ P
        P = P @ P
    return h


def varying_scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_t = a_t h_{t-1} + b_t for a, b (..., l, n) and h0 (..., n)."""
    a = a.expand(b.shape)
    if reverse:
        return varying_scan(a.flip(-2), b.flip(-2), h0, False).flip(-2)
    if h0 is not None:
        b = b + first_step(a[..., 0, :] * h0, b)
    h = b
    for stride in strides(b.shape[-2]):
        h = h + a * shift(h, stride)
        a = a * shift(a, stride)
    return h


def pair_scan(lam: Tensor, v: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_t = lam h_{t-1} + v_t for lam (p, 2), v (..., l, 2p) and h0 (..., 2p), complex numbers in pairs."""
    if reverse:
        return pair_scan(lam, v.flip(-2), h0, False).flip(-2)
    if h0 is not None:
        v = v + first_step(times(lam, h0, True), v)
    return constant_scan(lam[None], v, True)


def blocked_pass(
    u: Tensor, h0: Tensor, toeplitz: Tensor, M_in: Tensor, M_out: Tensor, whole: Tensor
) -> tuple[Tensor, Tensor]:
    """`resolvent::blocked_pass`: y (b, l, d) and the states before each block (d, b, m s).

    With a dynamic length there are at least two blocks, and steps are selected by index: sizes are then never compared,
    which would specialise an export to the lengths of its example.
    """
    (b, l, d), T, s = u.shape, toeplitz.shape[-1], M_in.shape[-1]
    m = (l + T - 1) // T if not isinstance(l, torch.SymInt) else l // T + 2
    steps = torch.arange(m * T, device=u.device).clamp(max=l)  # the one after the last is zero
    padded = torch.cat([u, u.new_zeros(b, 1, d)], 1).index_select(1, steps)
    rows = padded.permute(2, 0, 1).reshape(d, b * m, T)
    z = torch.bmm(rows, M_in).reshape(d, b, m, s)
    before = _states(whole, torch.cat([h0.transpose(0, 1)[:, :, None], z], 2).narrow(2, 0, m))
    y = torch.bmm(rows, toeplitz) + torch.bmm(before.reshape(d, b * m, s), M_out.mT)
    y = y.reshape(d, b, m * T).permute(1, 2, 0).index_select(1, torch.arange(l, device=u.device))
    return y, before.reshape(d, b, m * s)


def _states(whole: Tensor, w: Tensor) -> Tensor:
    """h_k = A^T h_{k-1} + w_k for w (d, b, m, s) and A^T (d, n), in pairs (d, n, 2), or dense (d, s, s)."""
    d, b, m, s = w.shape
    if whole.dim() == 2 or whole.shape[1] != s:
        return constant_scan(whole[:, None, None], w, whole.dim() == 3)
    h, P, blocks = w, whole, torch.arange(m, device=w.device)
    for stride in strides(m):
        earlier = F.pad(h, (0, 0, stride, 0)).index_select(2, blocks)
        h = h + torch.bmm(earlier.reshape(d, b * m, s), P).reshape(d, b, m, s)
        P = P @ P
    return h
