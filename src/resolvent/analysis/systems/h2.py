"""H2 norm: the energy of the impulse response, and the power of the output when the input is white noise.

    continuous  ||G||^2 = tr(C P C*), infinite if D is not zero (white noise passes through)
    discrete    ||G||^2 = tr(C P C*) + ||D||^2, plus 2 Re tr(D* C B) without delay, where C B acts immediately

P is the controllability Gramian: for a diagonal A the sum over pairs of b_i conj(b_j) / (1 - lam_i conj(lam_j)), or
-1 / (lam_i + conj(lam_j)) in continuous time, where 1 - lam_i conj(lam_j) is computed accurately near the circle.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from resolvent.analysis import checks
from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.matrices.exact import Array, one_minus
from resolvent.analysis.systems.gramian import controllability_factor
from resolvent.analysis.systems.norm import H2Norm, fill_bank, join_reasons
from resolvent.analysis.systems.realisation import Realisation, realisations
from resolvent.ssm import Dense, System


def h2_norm(system: System) -> H2Norm:
    """The H2 norm of each system of the bank; infinite with a reason when unstable, or continuous with a D.

    Examples:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(float(rv.analysis.h2_norm(rv.System(0.5 * one, one, one, 0 * one, dt=1.0)).value), 4)
        1.1547
    """
    checks.check_system("h2_norm", system)
    found = [_one(one) for one in realisations(system)]
    return H2Norm(fill_bank([v for v, _ in found], system.bank), join_reasons([r for _, r in found], system.bank))


def _one(one: Realisation) -> tuple[float, str]:
    if not one.discrete and one.D.any():
        return math.inf, "a continuous system whose D is not zero passes white noise of infinite power"
    reason = instability(one.poles(), one.discrete)[0]
    if reason:
        return math.inf, reason
    direct = float((np.abs(one.D) ** 2).sum())
    if one.discrete and not one.delay:
        direct += 2 * float(np.real(np.vdot(one.D, one.C @ one.B)))
    return math.sqrt(max(_energy(one) + direct, 0.0)), ""


def _energy(one: Realisation) -> float:
    """tr(C P C*)."""
    if not one.states:
        return 0.0
    if one.lam is not None:
        return _pairs(one.lam, one.B, one.C, one.discrete)
    A, B, C, D = (torch.from_numpy(np.ascontiguousarray(t)) for t in (one.A, one.B, one.C, one.D))
    system = System(Dense(A), B, C, D, 1.0 if one.discrete else None)
    return float(((system.C @ controllability_factor(system)).abs() ** 2).sum())


def _pairs(lam: Array, B: Array, C: Array, discrete: bool) -> float:
    """The closed form of a diagonal A."""
    i, j = lam[:, None], lam[None, :]
    distance = one_minus(i, j) if discrete else -(i + j.conj())
    weights = (B @ B.conj().T) * (C.T @ C.conj())  # (n, n)
    return float(np.real((weights / distance).sum()))
