"""The linear scan in plain torch, for any device: about sqrt(l) wide steps instead of l narrow ones.

The length is split into k blocks of m = floor(sqrt(l)) steps; the remaining l - k m steps follow one by one.

1. inside:   position i of all blocks at once, s_i = a_i s_{i-1} + b_i from zero, with the product p_i = a_i p_{i-1}
2. across:   the state that enters each block, c_j = p_last,j-1 c_{j-1} + s_last,j-1
3. joined:   h = s + p c, one fused operation

No division and no logarithm, so that a = 0 and underflowing products are exact. Besides h it needs memory for p,
which is as large as a, and only (m, n) when a does not depend on time.
"""

from __future__ import annotations

from itertools import pairwise
from math import isqrt

import torch
from torch import Tensor


def chunked_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t; a has the rank of b (..., l, n) and broadcasts to it, h0 is (..., n)."""
    l = b.shape[-2]
    m = max(1, isqrt(l))
    whole = m * (l // m)
    h = torch.empty_like(b, memory_format=torch.contiguous_format)
    start = l - whole if reverse else 0  # the remaining steps come last in scan order
    state = _blocks(_time(a, start, whole), b.narrow(-2, start, whole), h.narrow(-2, start, whole), h0, reverse, m)
    for t in range(l - whole - 1, -1, -1) if reverse else range(whole, l):
        torch.addcmul(b[..., t, :], _at(a, t), state, out=h[..., t, :])
        state = h[..., t, :]
    return h


def _blocks(a: Tensor, b: Tensor, h: Tensor, h0: Tensor | None, reverse: bool, m: int) -> Tensor:
    """Fill h for a whole number of blocks of m steps; returns the last state (..., n)."""
    b, h = b.unflatten(-2, (-1, m)), h.unflatten(-2, (-1, m))  # (..., k, m, n)
    a = a.unflatten(-2, (-1, m)) if a.shape[-2] > 1 or m == 1 else a.unsqueeze(-3)  # (..., k or 1, m or 1, n)
    order = range(m - 1, -1, -1) if reverse else range(m)
    p = a.new_empty((*a.shape[:-2], m, a.shape[-1]))
    h[..., order[0], :] = b[..., order[0], :]
    p[..., order[0], :] = _at(a, order[0])
    for last, i in pairwise(order):
        torch.addcmul(b[..., i, :], _at(a, i), h[..., last, :], out=h[..., i, :])
        torch.mul(_at(a, i), p[..., last, :], out=p[..., i, :])
    return _carry(h, p, h0, reverse)


def _carry(h: Tensor, p: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """Carry the states from block to block and add their contributions, in place."""
    k, end = h.shape[-3], 0 if reverse else -1
    order = range(k - 1, -1, -1) if reverse else range(k)
    enters = h.new_zeros((*h.shape[:-2], h.shape[-1]))  # (..., k, n): the state that enters each block
    state = h[..., order[0], end, :]
    if h0 is not None:
        enters[..., order[0], :] = h0
        state = torch.addcmul(state, _block(p, order[0])[..., end, :], h0)
    for j in order[1:]:
        enters[..., j, :] = state
        state = torch.addcmul(h[..., j, end, :], _block(p, j)[..., end, :], state)
    if h0 is None:  # nothing enters the first block: leave it unchanged, whatever its product
        after = slice(0, k - 1) if reverse else slice(1, k)
        p = p if p.shape[-3] == 1 else p[..., after, :, :]
        h, enters = h[..., after, :, :], enters[..., after, :]
    h.addcmul_(p, enters.unsqueeze(-2))
    return state


def _time(a: Tensor, start: int, length: int) -> Tensor:
    return a if a.shape[-2] == 1 else a.narrow(-2, start, length)


def _at(a: Tensor, t: int) -> Tensor:
    """Step t of a, or the only one."""
    return a[..., t if a.shape[-2] > 1 else 0, :]


def _block(p: Tensor, j: int) -> Tensor:
    return p[..., j if p.shape[-3] > 1 else 0, :, :]
