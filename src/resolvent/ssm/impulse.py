"""The impulse response of a bank of single-input systems as one real tensor: K_0 + D, K_1, ..., K_{l-1} per channel.

Long products of time-invariant layers need the whole response. With l = i T + j, T ~ sqrt(l), it is a product of two
thin tables, (C A^{iT}) (A^j B), for diagonal and for dense banks alike, and made in float64: it is rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ssm.block_tables import DenseBank, DiagonalBank
from resolvent.ssm.kernel import vandermonde_kernel


def impulse(bank: DiagonalBank | DenseBank, length: int) -> Tensor:
    """(d, length) in the bank's precision, the direct term D at its place zero."""
    K = _diagonal(bank, length) if isinstance(bank, DiagonalBank) else _dense(bank, length)
    return K if bank.D is None else torch.cat([K[:, :1] + bank.D[:, None], K[:, 1:]], 1)


def _diagonal(bank: DiagonalBank, length: int) -> Tensor:
    """K_l = Re sum_n weight_n gain_n lam_n^l."""
    weight = bank.weight if bank.gain is None else bank.weight * bank.gain
    if bank.lam.is_complex():
        return vandermonde_kernel(bank.lam, weight / 2, length, halves=True)
    return vandermonde_kernel(bank.lam, weight, length)


def _dense(bank: DenseBank, length: int) -> Tensor:
    """Rows B'(A')^j for j < T by doubling, whose last power A^T makes the rows C A^{iT} in the same way."""
    T = 1
    while length > T * T:
        T *= 2
    into, whole = _rows(bank.B, bank.A.mT, T)  # (d, T, s), (A')^T
    out, _ = _rows(bank.C, whole.mT, -(-length // T))  # (d, length / T, s)
    return (out @ into.mT).flatten(1)[:, :length]


def _rows(v: Tensor, P: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The rows v, v P, v P^2, ... (d, count, s) of v (d, s), and the next power of two of P that was not needed."""
    rows, power = v[:, None], P
    while rows.shape[1] < count:
        rows = torch.cat([rows, rows @ power], 1)
        power = power @ power
    return rows[:, :count], power
