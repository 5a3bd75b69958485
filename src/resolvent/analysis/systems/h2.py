"""H2 norm: the energy of the impulse response, and the power of the output when the input is white noise.

    continuous  ||G||^2 = tr(C P C*), infinite if D is not zero (white noise passes through)
    discrete    ||G||^2 = tr(C P C*) + ||D||^2 of the form with delay, where nothing but D acts immediately

P is the controllability Gramian: for a diagonal A the sum over pairs of b_i conj(b_j) / (1 - lam_i conj(lam_j)), or
-1 / (lam_i + conj(lam_j)) in continuous time, where 1 - lam_i conj(lam_j) is computed accurately near the circle. Where
pairs cancel, and for other A, tr(C P C*) = ||C L||^2 by a factor P = L L*, which loses half as many digits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from resolvent.analysis import checks
from resolvent.analysis.matrices.boundary import instability
from resolvent.analysis.matrices.exact import Array, one_minus
from resolvent.analysis.systems.gramian import controllability_factor
from resolvent.analysis.systems.norm import H2Norm, fill_bank, join_reasons
from resolvent.analysis.systems.realisation import Realisation, realisations
from resolvent.ssm import Dense, Diagonal, System

CANCELLED = 1e-4  # share of the sum of pairs in their sizes below which the factor is more accurate


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
    if one.discrete and not one.delay:
        after = one.C @ one.dense() if one.lam is None else one.C * one.lam
        one = replace(one, C=after, D=one.C @ one.B + one.D)
    return math.sqrt(_energy(one) + float((np.abs(one.D) ** 2).sum())), ""


def _energy(one: Realisation) -> float:
    """tr(C P C*)."""
    if not one.states:
        return 0.0
    if one.lam is not None:
        energy, terms = _pairs(one.lam, one.B, one.C, one.discrete)
        if energy > CANCELLED * terms:
            return energy
    A = Diagonal(torch.from_numpy(one.lam)) if one.lam is not None else Dense(torch.from_numpy(one.dense().copy()))
    B, C, D = (torch.from_numpy(t.copy()) for t in (one.B, one.C, one.D))
    system = System(A, B, C, D, 1.0 if one.discrete else None)
    L = controllability_factor(system)
    return float(((system.C.to(L.dtype) @ L).abs() ** 2).sum())


def _pairs(lam: Array, B: Array, C: Array, discrete: bool) -> tuple[float, float]:
    """The closed form of a diagonal A, and the sum of the sizes of its terms."""
    i, j = lam[:, None], lam[None, :]
    distance = one_minus(i, j) if discrete else -(i + j.conj())
    terms = (B @ B.conj().T) * (C.T @ C.conj()) / distance  # (n, n)
    return float(np.real(terms.sum())), float(np.abs(terms).sum())
