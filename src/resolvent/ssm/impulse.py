"""The impulse response of a bank of single-input systems as one real tensor: K_0 + D, K_1, ..., K_{l-1} per channel.

Long products of time-invariant layers need the whole response. With l = i T + j, T ~ sqrt(l), it is a product of two
thin tables, (C A^{iT}) (A^j B), for diagonal and dense banks alike, computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked import DenseBank, DiagonalBank
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast
from resolvent.ssm.kernel import powers, vandermonde_kernel


def impulse(bank: DiagonalBank | DenseBank, length: int) -> Tensor:
    """(d, length) in the bank's precision, with the direct term D zero."""
    K = _diagonal(bank, length) if isinstance(bank, DiagonalBank) else _dense(bank, length)
    return K if bank.D is None else torch.cat([K[:, :1] + bank.D[:, None], K[:, 1:]], 1)


def _diagonal(bank: DiagonalBank, length: int) -> Tensor:
    """K_l = Re sum_n weight_n gain_n lam_n^l."""
    weight = bank.weight if bank.gain is None else bank.weight * bank.gain
    if not is_untransformed() or not (weight.is_complex() and bank.lam.is_complex()):
        return _sums(bank.lam, weight, length)
    K: Tensor = _Sums.apply(bank.lam, weight, length)
    return K


def _sums(lam: Tensor, weight: Tensor, length: int) -> Tensor:
    if lam.is_complex():
        return vandermonde_kernel(lam, weight / 2, length, halves=True)
    return vandermonde_kernel(lam, weight, length)


class _Sums(torch.autograd.Function):
    """K_l = Re sum_n w_n lam_n^l with a gradient of two products, where autograd would use some sixty short operations:

    ∂w_n = ‾(sum_l ∂K_l lam_n^l),    ∂lam_n = ‾(w_n sum_l (l + 1) ∂K_{l+1} lam_n^l)
    """

    @staticmethod
    def forward(ctx: Any, lam: Tensor, weight: Tensor, length: int) -> Tensor:
        T = max(1, math.isqrt(length))
        fine, stride = powers(lam, T)  # lam^j (..., n, T)
        coarse = powers(stride, -(-length // T))[0]  # lam^(i T) (..., n, blocks)
        ctx.save_for_backward(lam, weight, fine, coarse)
        ctx.length = length
        left = weight[..., None] * coarse
        K = torch.cat([left.real, -left.imag], -2).mT @ torch.cat([fine.real, fine.imag], -2)  # (..., blocks, T)
        return K.flatten(-2)[..., :length]

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        lam, weight, fine, coarse = ctx.saved_tensors
        g, l = gradients[0], ctx.length
        if by_graph_only(g):
            found = gradients_by_graph(lambda a, w: (_sums(a, w, l),), (lam, weight), (g,), ctx.needs_input_grad[:2])
            return *found, None
        rise = torch.zeros_like(g)
        rise[..., :-1] = g[..., 1:] * torch.arange(1, l, dtype=g.dtype, device=g.device)
        T, blocks = fine.shape[-1], coarse.shape[-1]
        both = torch.nn.functional.pad(torch.stack([g, rise], -2), (0, blocks * T - l)).unflatten(-1, (blocks, T))
        parts = torch.view_as_real(fine).movedim(-1, -3).flatten(-3, -2)  # (..., 2 n, T)
        inner = parts @ both.flatten(-3, -2).mT  # (..., 2 n, 2 blocks): real parts, then imaginary ones
        re, im = inner.unflatten(-2, (2, -1)).unbind(-3)
        sums = (torch.complex(re, im).unflatten(-1, (2, blocks)) * coarse[..., None, :]).sum(-1).conj()  # (..., n, 2)
        own, along = sums.resolve_conj().unbind(-1)
        return along * weight.conj(), own, None


def _dense(bank: DenseBank, length: int) -> Tensor:
    """Rows B'(A')^j for j < T by doubling, whose last power A^T makes the rows C A^{iT} in the same way."""
    if bank.A.is_cuda and is_untransformed():  # on a CPU kernel launches cost little
        K: Tensor = _DenseSums.apply(bank.A, bank.B, bank.C, length)
        return K
    return _dense_sums(bank.A, bank.B, bank.C, length)


def _dense_sums(A: Tensor, B: Tensor, C: Tensor, length: int) -> Tensor:
    T = _cut(length)
    into, squares = _rows(B, A.mT, T)  # (d, T, s), (A')^T
    out, _ = _rows(C, squares[-1].mT, -(-length // T))  # (d, length / T, s)
    return (out @ into.mT).flatten(1)[:, :length]


def _cut(length: int) -> int:
    """The power of two nearest to the root of the length."""
    return 1 << -(-(length - 1).bit_length() // 2)


def _rows(v: Tensor, P: Tensor, count: int) -> tuple[Tensor, list[Tensor]]:
    """The rows v, v P, v P^2, ... (d, count, s) of v (d, s); P, P^2, P^4, ... up to the first unneeded one."""
    rows, squares = v[:, None], [P]
    while rows.shape[1] < count:
        rows = torch.cat([rows, rows @ squares[-1]], 1)
        squares.append(squares[-1] @ squares[-1])
    return rows[:, :count], squares


class _DenseSums(torch.autograd.Function):
    """K_{iT+j} = (C A^{iT}) (A^j B) with a gradient of some thirty products, where autograd would use two hundred short
    operations: rows r_{j+1} = r_j P give s_j = ∂r_j + s_{j+1} P' in reverse, so ∂P = sum_j r_j' s_{j+1}, ∂v = s_0.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, C: Tensor, length: int) -> Tensor:
        T = _cut(length)
        into, down = _rows(B, A.mT, T)
        out, across = _rows(C, down[-1].mT, -(-length // T))
        ctx.save_for_backward(A, B, C, into, out, *down, *across)
        ctx.length, ctx.count = length, len(down)
        return (out @ into.mT).flatten(1)[:, :length]

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        A, B, C, into, out, *squares = ctx.saved_tensors
        g, length = gradients[0], ctx.length
        if by_graph_only(g):
            run = lambda A, B, C: (_dense_sums(A, B, C, length),)  # noqa: E731
            return *gradients_by_graph(run, (A, B, C), (g,), ctx.needs_input_grad[:3]), None
        down, across = squares[: ctx.count], squares[ctx.count :]
        G = torch.nn.functional.pad(g, (0, out.shape[1] * into.shape[1] - length)).unflatten(1, (out.shape[1], -1))
        gC, slope = _row_gradients(out, G @ into, across)  # gradient of A^T
        for power in reversed(down[:-1]):  # through the squarings (A')^m down to A
            slope = torch.baddbmm(slope @ power, power, slope)
        gB, turned = _row_gradients(into, G.mT @ out, down)
        return slope + turned.mT, gB, gC, None


def _row_gradients(rows: Tensor, g: Tensor, squares: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients of v and P from that of the rows (d, count, s)."""
    d, count, s = rows.shape
    reach = 1 << (len(squares) - 1)
    sums, other = (g.new_zeros((d, count + reach, s)) for _ in range(2))  # zeros beyond the last row
    sums[:, :count] = g
    for k, power in enumerate(squares[:-1]):
        m = 1 << k
        torch.baddbmm(sums[:, :count], sums[:, m : m + count], power.mT, out=other[:, :count])
        sums, other = other, sums
    return sums[:, 0], rows.mT @ sums[:, 1 : count + 1]
