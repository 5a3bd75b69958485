"""Responses in time: to an impulse, and to a unit step.

For discrete systems at the steps 0, 1, ..., length - 1, for continuous ones at given times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.matrices.balance import balance
from resolvent.ssm import Diagonal, System, expm1_over, kernel
from resolvent.usage.numbers import check_count


def impulse_response(system: System, when: Any) -> Tensor:
    """h (..., p, m, k): `when` is a number of steps for a discrete system, times (k,) >= 0 for a continuous one.

    Discrete: h_0 = C B + D and h_l = C A^l B. Continuous: C exp(t A) B; the direct term D is an impulse at t = 0 of
    infinite height and cannot be shown.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> rv.analysis.impulse_response(rv.System(0.5 * one, one, one, 0 * one, dt=1.0), 3).flatten()
        tensor([1.0000, 0.5000, 0.2500])
    """
    t = _read_when("impulse_response", system, when)
    if isinstance(t, int):
        return discrete_response(system, t)
    if isinstance(system.A, Diagonal):
        return _modes(system, torch.exp(t[..., :, None] * system.A.lam[..., None, :]))
    system = balance(system)
    flow = torch.linalg.matrix_exp(t[:, None, None] * system.A.dense()[..., None, :, :])  # (..., k, n, n)
    return (system.C[..., None, :, :] @ flow @ system.B[..., None, :, :]).movedim(-3, -1)


def step_response(system: System, when: Any) -> Tensor:
    """y (..., p, m, k) for an input of 1 from step or time 0 on; `when` as in `impulse_response`. Includes D.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> rv.analysis.step_response(rv.System(0.5 * one, one, one, 0 * one, dt=1.0), 3).flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    t = _read_when("step_response", system, when)
    if isinstance(t, int):
        return discrete_response(system, t).cumsum(-1)
    if isinstance(system.A, Diagonal):
        z = t[:, None] * system.A.lam[..., None, :]
        return _modes(system, t[:, None] * expm1_over(z)) + system.D[..., None]
    system = balance(system)
    return (system.C[..., None, :, :] @ _integral(system, t)).movedim(-3, -1) + system.D[..., None]


def _read_when(who: str, system: System, when: Any) -> int | Tensor:
    """Steps of a discrete system, times of a continuous one."""
    checks.check_system(who, system)
    if system.dt is None:
        return _times(who, system, when)
    check_count(who, 1, when=when)
    return int(when)


def discrete_response(system: System, length: int) -> Tensor:
    """The kernel with the direct term: (..., p, m, length)."""
    K = kernel(system, length).clone()
    K[..., 0] += system.D
    return K


def _modes(system: System, modes: Tensor) -> Tensor:
    """sum_n C_pn modes_kn B_nm: modes (..., k, n) -> (..., p, m, k)."""
    return torch.einsum("...pn,...kn,...nm->...pmk", system.C, modes, system.B)


def _integral(system: System, t: Tensor) -> Tensor:
    """The integral of exp(s A) B over s from 0 to t, from one exponential of [[A, B], [0, 0]]: (..., k, n, m)."""
    n, m = system.states, system.inputs
    lead = system.bank
    top = torch.cat([x.expand(*lead, *x.shape[-2:]) for x in (system.A.dense(), system.B)], -1)
    whole = torch.cat([top, top.new_zeros(*lead, m, n + m)], -2)
    return torch.linalg.matrix_exp(t[:, None, None] * whole[..., None, :, :])[..., :n, n:]


def _times(where: str, system: System, when: Any) -> Tensor:
    if isinstance(when, int):
        raise TypeError(f"{where}: a continuous system is asked at times, a tensor (k,), not for {when} steps.")
    t = checks.check_axis(where, "when", when)
    if t.dim() != 1 or bool((t < 0).any()):
        raise ValueError(f"{where}: when must be times (k,) from zero on, got the shape {tuple(t.shape)}.")
    return t.to(system.D.device, system.D.real.dtype)
