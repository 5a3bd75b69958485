"""Hankel singular values: how much of the past each combination of states carries into the future.

They are the singular values of Lo* Lc, the square roots of both Gramians (`gramian`), for (A, B, C) as stored: of the
map from inputs up to now to outputs from now on. In the library's form without delay "now" belongs to both.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.systems.gramian import controllability_factor, observability_factor, unstable
from resolvent.ssm import Dense, Diagonal, System


def hankel_singular_values(system: System) -> Tensor:
    """(..., n) in descending order, double precision; all infinite for an unstable system of the bank.

    Examples:
        >>> rv.analysis.hankel_singular_values(rv.EMA(1, 4).double().system()).shape
        torch.Size([1, 4])
    """
    checks.check_system("hankel_singular_values", system)
    bad = torch.tensor([bool(reason) for reason in unstable(system)]).reshape(system.bank)
    bad = bad.to(system.B.device)
    calm = with_zero(system, bad) if bool(bad.any()) else system
    values = torch.linalg.svdvals(observability_factor(calm).mH @ controllability_factor(calm))
    return torch.where(bad[..., None], math.inf, values)


def with_zero(system: System, bad: Tensor) -> System:
    """The same bank with A = 0 (discrete) or -1 (continuous) for the marked systems, which have no Gramian."""
    rest = 0.0 if system.dt is not None else -1.0
    if isinstance(system.A, Diagonal):
        lam = system.A.lam.expand(*system.bank, system.states)
        return replace(system, A=Diagonal(torch.where(bad[..., None], rest, lam)))
    A = system.A.dense().expand(*system.bank, system.states, system.states)
    eye = torch.eye(system.states, dtype=A.dtype, device=A.device)
    return replace(system, A=Dense(torch.where(bad[..., None, None], rest * eye, A)))
