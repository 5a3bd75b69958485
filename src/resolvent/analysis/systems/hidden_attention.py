"""The matrix that a linear recurrence applies to its input, comparable to the weights of an attention layer.

    y = M u,    M[t, s] = C_t A_t A_{t-1} ... A_{s+1} B_s  for s <= t,  plus D_t where s = t

For a time-varying system, such as `layer.linearise(x)` of a selective layer, M depends on x as in attention (Ali,
Zimerman & Wolf 2024); for a time-invariant one it is Toeplitz, the kernel shifted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.analysis.systems.realisation import is_real
from resolvent.ssm import System
from resolvent.ssm.system import broadcast, check_discrete
from resolvent.usage.numbers import check_count


def hidden_attention(system: System, length: int | None = None) -> Tensor:
    """M of each system of the bank: (..., l, l), or (..., l, l, outputs, inputs) for several inputs or outputs.

    length   steps of a time-invariant system; a time-varying one has its own

    Examples:
        >>> layer = rv.S6(2, 4)
        >>> rv.analysis.hidden_attention(layer.linearise(torch.randn(1, 10, 2))).shape
        torch.Size([1, 2, 10, 10])
    """
    check_discrete("hidden_attention", system, "use layer.linearise(x)")
    if system.delay:
        raise ValueError("hidden_attention: expected a system without delay, got one in the delayed form.")
    if system.time_varying == (length is not None):
        why = "has its own length: leave length out" if system.time_varying else "has no length of its own: give one"
        raise ValueError(f"hidden_attention: a {'time-varying' if system.time_varying else 'constant'} system {why}.")
    A, B, C, D = system.A.dense(), system.B, system.C, system.D
    A, B, C = (t.to(system.dtype) for t in (A, B, C))
    if length is not None:
        check_count("hidden_attention", 1, length=length)
        A, B, C, D = (t[..., None, :, :].expand(*t.shape[:-2], length, *t.shape[-2:]) for t in (A, B, C, D))
    M = _matrix(A, B, C, D.to(system.dtype))
    return M.real if M.is_complex() and is_real(system) else M  # conjugate pairs sum to real numbers


def _matrix(A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Row by row: columns X[s] = A_t ... A_{s+1} B_s of all sources so far advance one step and are read."""
    l, (n, m) = B.shape[-3], B.shape[-2:]
    lead = broadcast(A.shape[:-3], B.shape[:-3], C.shape[:-3], D.shape[:-3])
    X = B.new_zeros(*lead, l, n, m)  # (..., s, n, m)
    rows = []
    for t in range(l):
        X = A[..., t, None, :, :] @ X
        X = torch.cat([X[..., :t, :, :], B[..., t, None, :, :].expand(*lead, 1, n, m), X[..., t + 1 :, :, :]], -3)
        row = C[..., t, None, :, :] @ X  # (..., s, p, m)
        own = torch.zeros_like(row)
        own[..., t, :, :] = D[..., t, :, :].to(row.dtype)
        rows.append(row + own)
    M = torch.stack(rows, -4)  # (..., t, s, p, m)
    return M[..., 0, 0] if M.shape[-2:] == (1, 1) else M
