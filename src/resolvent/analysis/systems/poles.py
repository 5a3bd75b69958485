"""Poles and their time constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.matrices.exact import circle_gap
from resolvent.ssm import Diagonal, System


def poles(system: System) -> Tensor:
    """The eigenvalues of A: complex (..., n), in the order of a diagonal A, else in LAPACK's order.

    For a strongly non-normal A their accuracy in float64 is limited: see `eigenvector_condition`.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> rv.analysis.poles(rv.System(0.5 * one, one, one, 0 * one, dt=1.0)).real
        tensor([0.5000])
    """
    checks.check_system("poles", system)
    return _poles(system)


def time_constants(system: System) -> Tensor:
    """How long each pole's mode takes to fall to 1/e: (..., n), in units of time, or in steps for a discrete system.

    -1/Re(lam), or -1/log|lam|; infinite for a mode that does not decay, zero for one that vanishes after a step.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> round(float(rv.analysis.time_constants(rv.System(0.9 * one, one, one, 0 * one, dt=1.0))), 2)
        9.49
    """
    checks.check_system("time_constants", system)
    lam = _poles(system).to(torch.complex128)
    if system.dt is None:
        rate = -lam.real
    else:
        gap = torch.from_numpy(circle_gap(lam.detach().cpu().numpy())).to(lam.device)
        rate = -torch.log1p(-gap.clamp_max(1.0))
    return torch.where(rate > 0, 1 / rate, math.inf).to(system.D.real.dtype)


def _poles(system: System) -> Tensor:
    complex_dtype = torch.promote_types(system.dtype, torch.complex64)
    if isinstance(system.A, Diagonal):
        return system.A.lam.to(complex_dtype)
    return torch.linalg.eigvals(system.A.dense()).to(complex_dtype)
