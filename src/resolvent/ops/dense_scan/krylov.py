"""[b, A b, A^2 b, ...] by doubling; in a traced pass one opaque node, so that the length may be dynamic."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.opaque import Opaque
from resolvent.runtime.transforms import is_traced


def krylov(A: Tensor, b: Tensor, length: int) -> Tensor:
    """[b, A b, A^2 b, ...] (..., m, length) of A (..., m, m) and b (..., m, 1): log2(length) products."""
    if not is_traced(A):
        return _double_columns(A, b, length)
    if plain.is_chosen():
        impulse = torch.cat([b.mT, b.new_zeros(*b.shape[:-2], length, b.shape[-2])], -2).narrow(-2, 0, length)
        return plain.dense_scan(A.mT, impulse).mT
    return _OPAQUE.operator((A, b), "", length, False)[0]


def _double_columns(A: Tensor, b: Tensor, length: int) -> Tensor:
    powers = b
    while powers.shape[-1] < length:
        powers = torch.cat([powers, A @ powers], -1)
        A = A @ A
    return powers[..., :length]


_OPAQUE = Opaque(
    "krylov",
    lambda given, _, length, __: [_double_columns(given[0], given[1], length)],
    lambda given, _, length, __: [(*given[0].shape[:-1], length)],
    is_large=True,
)
