"""Gramians as square roots, P = L L*, by Smith's iteration with doubled strides: P is never formed or factorised.

    P = sum_k A^k B B* A*^k,    [L_{j+1}] = [L_j, A^(2^j) L_j] compressed by a QR factorisation

Small entries of L keep their accuracy, where a Cholesky factor of P would lose half the digits. A continuous system is
mapped to the unit circle by A_d = (a - A)^-1 (a + A), B_d = sqrt(2 a) (a - A)^-1 B, which leaves P unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.systems.realisation import flat
from resolvent.ssm import Diagonal, System

DOUBLINGS = 64


def controllability_factor(system: System) -> Tensor:
    """Lc (..., n, n) with Lc Lc* the Gramian of (A, B), in double precision, for stable systems."""
    A, B, _ = _on_circle(system)
    return _smith(A, B)


def observability_factor(system: System) -> Tensor:
    """Lo (..., n, n) with Lo Lo* the Gramian of (C, A) as they are stored, with or without delay."""
    A, _, C = _on_circle(system)
    return _smith(A.mH, C.mH)


def unstable(system: System) -> list[str]:
    """For each system of the bank, why it has no Gramian; empty if it has one."""
    lam = system.A.lam if isinstance(system.A, Diagonal) else torch.linalg.eigvals(system.A.dense())
    return [instability(row, system.dt is not None)[0] for row in flat(lam, system.bank, 1)]


def _on_circle(system: System) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.complex128 if system.dtype.is_complex else torch.float64
    wide = [t.detach().to(dtype) for t in (system.A.dense(), system.B, system.C)]
    A, B, C = (t.expand(*system.bank, *t.shape[-2:]) for t in wide)
    return _to_circle(A, B, C) if system.dt is None and system.states else (A, B, C)


def _to_circle(A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The shift a is the geometric mean of the largest and smallest size of the poles: the fewest doublings."""
    size = torch.linalg.eigvals(A).abs()  # (..., n)
    a = torch.sqrt(size.amax(-1) * size.amin(-1)).clamp_min(1e-300)[..., None, None]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    M, root = a * eye - A, torch.sqrt(2 * a)
    A_d = torch.linalg.solve(M, a * eye + A)
    return A_d, torch.linalg.solve(M, root * B), torch.linalg.solve(M.mH, root * C.mH).mH


def _smith(A: Tensor, B: Tensor) -> Tensor:
    """L (..., n, n) of the discrete system, until another doubling changes nothing."""
    L = _compress(B)
    for _ in range(DOUBLINGS if L.numel() else 0):
        more = A @ L
        if bool((more.abs().amax((-2, -1)) <= 1e-18 * L.abs().amax((-2, -1))).all()):
            break
        L = _compress(torch.cat([L, more], -1))
        A = A @ A
        if not bool(torch.isfinite(L).all()):
            break
    return L


def _compress(L: Tensor) -> Tensor:
    """(..., n, k) -> (..., n, n) with the same L L*."""
    n = L.shape[-2]
    if L.shape[-1] <= n:
        return torch.nn.functional.pad(L, (0, n - L.shape[-1]))
    return torch.linalg.qr(L.mH, mode="r")[1].mH
