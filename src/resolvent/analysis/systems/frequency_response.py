"""The transfer function on the stability boundary: a system's response at each frequency.

    G(i w) = C (i w - A)^-1 B + D                    continuous, w in radians per unit of time
    G(e^(i w)) = C (1 - e^(-i w) A)^-1 B + D         discrete, w in radians per step (w dt for a frequency in time)

A diagonal A gives a sum over 1/(s - lam) (Cauchy), a DPLR one adds Woodbury's correction of rank r, a dense one is
reduced to Schur form once. Differentiable in the system and in w (a dense A that requires gradients is solved anew at
each frequency). A value at an exact pole is infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.matrices.balance import balance
from resolvent.analysis.matrices.schur import Schur, solve
from resolvent.analysis.systems.realisation import flat
from resolvent.ssm import DPLR, Diagonal, System
from resolvent.ssm.kernel import stack
from resolvent.ssm.system import broadcast


def frequency_response(system: System, omega: Any) -> Tensor:
    """G at the frequencies omega (k,), or (..., k) against the bank: complex (..., p, m, k).

    Examples:
        >>> one = torch.ones(1, 1)
        >>> system = rv.System(0.5 * one, one, one, 0 * one, dt=1.0)
        >>> rv.analysis.frequency_response(system, torch.tensor([0.0])).abs().flatten()
        tensor([2.])
    """
    checks.check_system("frequency_response", system)
    return _at(system, checks.check_axis("frequency_response", "omega", omega).to(system.D.device, system.D.real.dtype))


def dc_gain(system: System) -> Tensor:
    """G at frequency zero, the steady-state response to a constant input: (..., p, m), real when the matrices are.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> float(rv.analysis.dc_gain(rv.System(0.5 * one, one, one, 0 * one, dt=1.0)))
        2.0
    """
    checks.check_system("dc_gain", system)
    zero = torch.zeros(1, dtype=system.D.real.dtype, device=system.D.device)
    G = _at(system, zero)[..., 0]
    return G if system.dtype.is_complex else G.real


def _at(system: System, omega: Tensor) -> Tensor:
    if isinstance(system.A, Diagonal):
        G = _cauchy(system.C, 1 / _distance(system, system.A.lam, omega), system.B)  # (..., k, p, m)
    elif isinstance(system.A, DPLR):
        G = _woodbury(system, system.A, omega)
    elif _wants_gradient(system, omega):
        G = _solve(system, omega)
    else:
        G = _by_schur(system, omega)
    if system.dt is not None and system.delay:
        G = G * torch.polar(torch.ones_like(omega), -omega)[..., None, None]
    G = torch.where(G.isnan(), torch.full_like(G, torch.inf), G) + system.D[..., None, :, :]
    return G.movedim(-3, -1)


def _distance(system: System, lam: Tensor, omega: Tensor) -> Tensor:
    """i w - lam, or 1 - lam e^(-i w): omega (..., k), lam (..., n) -> (..., k, n)."""
    if system.dt is None:
        return torch.complex(torch.zeros_like(omega), omega)[..., None] - lam[..., None, :]
    return 1 - torch.polar(torch.ones_like(omega), -omega)[..., None] * lam[..., None, :]


def _cauchy(C: Tensor, inverse: Tensor, B: Tensor) -> Tensor:
    """C diag(inverse_k) B: (..., p, n), (..., k, n), (..., n, m) -> (..., k, p, m)."""
    terms = C.mT[..., :, :, None] * B[..., :, None, :]  # (..., n, p, m)
    terms = terms.to(inverse.dtype)
    silent = (terms == 0).all(-1).all(-1)[..., None, :]  # a state without residue, even at its own pole
    inverse = torch.where(silent, torch.zeros_like(inverse), inverse)
    return (inverse @ terms.flatten(-2)).unflatten(-1, terms.shape[-2:])


def _woodbury(system: System, A: DPLR, omega: Tensor) -> Tensor:
    """(S + t P Q*)^-1 = S^-1 - t S^-1 P (1 + t Q* S^-1 P)^-1 Q* S^-1, S diagonal, t = 1 or e^(-i w)."""
    d = _distance(system, A.lam, omega)
    met = (d == 0).any(-1)  # frequencies at an entry of lam, which is not a pole of A: solved densely below
    inverse = 1 / torch.where(met[..., None], torch.ones_like(d), d)
    K = _cauchy(stack([system.C, A.Q.mH], -2), inverse, stack([system.B, A.P], -1))  # (..., k, p + r, m + r)
    p, m = system.outputs, system.inputs
    t = torch.ones_like(omega) if system.dt is None else torch.polar(torch.ones_like(omega), -omega)
    t = t[..., None, None]
    eye = torch.eye(K.shape[-1] - m, dtype=K.dtype, device=K.device)
    low = torch.linalg.solve_ex(eye + t * K[..., p:, m:], K[..., p:, :m])[0]
    G = K[..., :p, :m] - t * K[..., :p, m:] @ low
    if bool(met.any()):
        G = torch.where(met[..., None, None], _solve(system, omega), G)
    return G


def _solve(system: System, omega: Tensor) -> Tensor:
    """The reference: one linear system per frequency."""
    A = system.A.dense()[..., None, :, :]
    eye = torch.eye(system.states, dtype=A.dtype, device=A.device)
    if system.dt is None:
        M = torch.complex(torch.zeros_like(omega), omega)[..., None, None] * eye - A
    else:
        M = eye - torch.polar(torch.ones_like(omega), -omega)[..., None, None] * A
    X, info = torch.linalg.solve_ex(M, system.B[..., None, :, :].to(M.dtype))
    G = system.C[..., None, :, :].to(M.dtype) @ X
    return torch.where((info != 0)[..., None, None], torch.full_like(G, torch.inf), G)


def _by_schur(system: System, omega: Tensor) -> Tensor:
    """One Schur form for each system of the bank, then triangular solves for all its frequencies."""
    bank = broadcast(system.bank, omega.shape[:-1])
    w = omega.detach().to("cpu", torch.float64)
    s = torch.complex(torch.zeros_like(w), w) if system.dt is None else torch.polar(torch.ones_like(w), w)
    system = balance(system)
    A, B, C = (flat(t, bank, 2) for t in (system.A.dense(), system.B, system.C))
    z = flat(s, bank, 1)
    out = []
    for a, b, c, points in zip(A, B, C, z, strict=True):
        form = Schur.of(a)
        left, right = c @ form.U, form.U.conj().T @ b
        with np.errstate(invalid="ignore"):  # infinities at a pole
            columns = [left @ solve(form.T, points, column[:, None]) for column in right.T]  # m of (p, k)
        G = torch.from_numpy(np.reshape(columns, (len(right.T), len(left), len(points)))).permute(2, 1, 0)  # (k, p, m)
        out.append(G if system.dt is None else G * torch.from_numpy(points)[:, None, None])
    G = torch.stack(out).reshape(*bank, *out[0].shape)
    return G.to(system.B.device, torch.promote_types(system.dtype, torch.complex64))


def _wants_gradient(system: System, omega: Tensor) -> bool:
    parts = (*checks.matrix_parts(system), system.B, system.C, omega)
    return torch.is_grad_enabled() and any(t.requires_grad for t in parts)
