"""Gramians as square roots, P = L L*, by Smith's iteration with doubled strides: P is never formed or factorised.

    P = sum_k A^k B B* A*^k,    [L_{j+1}] = [L_j, A^(2^j) L_j] compressed by a QR factorisation

Small entries of L keep their accuracy, where a Cholesky factor of P would lose half the digits. A continuous system is
mapped to the unit circle by A_d = (a - A)^-1 (a + A), B_d = sqrt(2 a) (a - A)^-1 B, which leaves P unchanged. Powers of
a diagonal A are taken by its logarithm, whose real part is accurate however close to the circle a pole is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.matrices.exact import circle_gap
from resolvent.analysis.systems.realisation import flat
from resolvent.ssm import Dense, Diagonal, System

DOUBLINGS = 64
LEAST = -1e4  # the logarithm of the modulus of a pole at zero, whose powers vanish


def controllability_factor(system: System) -> Tensor:
    """Lc (..., n, n) with Lc Lc* the Gramian of (A, B), in double precision, for stable systems."""
    A, B, _ = _on_circle(system)
    return _smith(A, B)


def observability_factor(system: System) -> Tensor:
    """Lo (..., n, n) with Lo Lo* the Gramian of (C, A) as they are stored, with or without delay."""
    A, _, C = _on_circle(system)
    return _smith(Diagonal(A.lam.conj()) if isinstance(A, Diagonal) else Dense(A.matrix.mH), C.mH)


def unstable(system: System) -> list[str]:
    """For each system of the bank, why it has no Gramian; empty if it has one."""
    lam = system.A.lam if isinstance(system.A, Diagonal) else torch.linalg.eigvals(system.A.dense())
    return [instability(row, system.dt is not None)[0] for row in flat(lam, system.bank, 1)]


def _on_circle(system: System) -> tuple[Dense | Diagonal, Tensor, Tensor]:
    """A Dense A, or the logarithms of a diagonal one, with B and C of the discrete system."""
    diagonal = isinstance(system.A, Diagonal)
    dtype = torch.complex128 if diagonal or system.dtype.is_complex else torch.float64
    B, C = (t.detach().to(dtype).expand(*system.bank, *t.shape[-2:]) for t in (system.B, system.C))
    if isinstance(system.A, Diagonal):
        lam = system.A.lam.detach().to(dtype)
        if system.dt is not None:
            gap = torch.from_numpy(circle_gap(lam.cpu().numpy())).to(lam.device)
            return Diagonal(_log(lam, torch.log1p(-gap))), B, C
        a = _shift(lam)[..., 0]
        far = a - lam
        log = _log((a + lam) / far, torch.log1p(4 * a * lam.real / far.abs() ** 2) / 2)
        scale = torch.sqrt(2 * a) / far  # (..., n)
        return Diagonal(log), scale[..., None] * B, C * scale[..., None, :]
    A = system.A.dense().detach().to(dtype).expand(*system.bank, system.states, system.states)
    if system.dt is not None or not system.states:
        return Dense(A), B, C
    a = _shift(torch.linalg.eigvals(A))
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    M, root = a * eye - A, torch.sqrt(2 * a)
    A_d = torch.linalg.solve(M, a * eye + A)
    return Dense(A_d), torch.linalg.solve(M, root * B), torch.linalg.solve(M.mH, root * C.mH).mH


def _shift(lam: Tensor) -> Tensor:
    """a (..., 1, 1): the geometric mean of the largest and smallest size of the poles gives the fewest doublings."""
    size = lam.abs()  # (..., n)
    return (size.amax(-1).sqrt() * size.amin(-1).sqrt()).clamp_min(1e-300)[..., None, None]


def _log(z: Tensor, close: Tensor) -> Tensor:
    """log z, with the real part `close` near the circle."""
    size = z.abs()
    return torch.complex(torch.where(size < 0.5, size.log(), close).clamp_min(LEAST), z.angle())


def _smith(A: Dense | Diagonal, B: Tensor) -> Tensor:
    """L (..., n, n) of the discrete system, until another doubling changes nothing."""
    L = _compress(B)
    for _ in range(DOUBLINGS if L.numel() else 0):
        more = A.lam.exp()[..., None] * L if isinstance(A, Diagonal) else A.matrix @ L
        if bool((more.abs().amax((-2, -1)) <= 1e-18 * L.abs().amax((-2, -1))).all()):
            break
        L = _compress(torch.cat([L, more], -1))
        A = Diagonal(A.lam + A.lam) if isinstance(A, Diagonal) else Dense(A.matrix @ A.matrix)
        if not bool(torch.isfinite(L).all()):
            break
    return L


def _compress(L: Tensor) -> Tensor:
    """(..., n, k) -> (..., n, n) with the same L L*."""
    n = L.shape[-2]
    if L.shape[-1] <= n:
        return torch.nn.functional.pad(L, (0, n - L.shape[-1]))
    return torch.linalg.qr(L.mH, mode="r")[1].mH
