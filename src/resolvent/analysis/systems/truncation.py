"""Balanced truncation: fewer states, with an error bound.

In balanced coordinates every state is equally controllable and observable, by its Hankel singular value. The
reduced system keeps the largest r; for the dropped values s_{r+1}, ...

    ||G - G_r||_inf <= 2 (s_{r+1} + ... + s_n)

(Enns 1984, Glover 1984; discrete: Al-Saggaf and Franklin 1987). The square-root method (Tombs and Postlethwaite 1987)
projects without balancing first, so negligible states do no harm. Without delay the transfer function is
z times one with delay plus D, so (A, B, C) may be reduced as stored and D is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.systems.gramian import controllability_factor, observability_factor, unstable
from resolvent.analysis.systems.norm import join_reasons
from resolvent.analysis.systems.realisation import is_real
from resolvent.ssm import Dense, Diagonal, System
from resolvent.usage.numbers import check_count


@dataclass(frozen=True)
class Reduction:
    """A system of `order` states; `error_bound` >= ||G - G_r||_inf for each system of the bank.

    Examples:
        >>> found = rv.analysis.balanced_truncation(rv.EMA(1, 8).double().system(), order=2)
        >>> found.order
        2
    """

    system: System
    order: int
    error_bound: Tensor  # (...)
    hankel_singular_values: Tensor  # (..., n), all of the full system's


def balanced_truncation(system: System, order: int | None = None, tolerance: float | None = None) -> Reduction:
    """Reduce each system of the bank to `order` states, or to the fewest whose error bound is below `tolerance`.

    A bank has a common order, that of its most demanding system. Real maps, including conjugate pairs, stay real. A
    system with fewer than `order` significant states is padded with zeros. The bound is for exact
    arithmetic: below rounding level, rounding remains.

    Examples:
        >>> found = rv.analysis.balanced_truncation(rv.EMA(1, 8).double().system(), tolerance=1e-3)
        >>> found.order <= 8
        True
    """
    checks.check_system("balanced_truncation", system)
    _check(system, order, tolerance)
    real = real_form(system)
    Lc, Lo = controllability_factor(real), observability_factor(real)
    U, s, Vh = torch.linalg.svd(Lo.mH @ Lc)
    tails = 2 * torch.nn.functional.pad(s.flip(-1).cumsum(-1).flip(-1), (0, 1))  # (..., n + 1)
    if order is None:
        assert tolerance is not None
        order = min(max(1, int((tails > tolerance).sum(-1).max())), system.states)
    floor = s[..., :1] * s.shape[-1] * torch.finfo(s.dtype).eps
    kept = s[..., :order]
    scale = torch.where(kept > floor, kept, torch.inf).rsqrt()[..., None, :]  # states without weight become zeros
    right, left = Lc @ Vh.mH[..., :order] * scale, Lo @ U[..., :order] * scale  # (..., n, r)
    A = left.mH @ real.A.apply(right)
    reduced = System(Dense(A), left.mH @ real.B, real.C @ right, real.D, real.dt, real.delay)
    return Reduction(reduced, order, tails[..., order], s)


def real_form(system: System) -> System:
    """Double precision; a diagonal A in conjugate halves becomes a real matrix with the same number of states."""
    bank, plain = system.bank, system.wide()
    B, C, D = (t.detach().expand(*bank, *t.shape[-2:]) for t in (plain.B, plain.C, plain.D))
    if not (system.dtype.is_complex and isinstance(plain.A, Diagonal) and is_real(system)):
        A = plain.A.dense().detach().expand(*bank, system.states, system.states)
        return System(Dense(A), B, C, D, system.dt, system.delay)
    half = system.states // 2
    lam = plain.A.lam.detach().expand(*bank, system.states)[..., :half]
    return System(Diagonal(lam), B[..., :half, :], 2 * C[..., :half], D, system.dt, system.delay).real()


def _check(system: System, order: int | None, tolerance: float | None) -> None:
    where = "balanced_truncation"
    if (order is None) == (tolerance is None):
        raise ValueError(f"{where}: give either an order or a tolerance, got order={order} and tolerance={tolerance}.")
    if order is not None:
        check_count(where, 1, order=order)
        if order > system.states:
            raise ValueError(f"{where}: the system has {system.states} states, so order={order} is no reduction.")
    if tolerance is not None:
        checks.check_real_number(where, "tolerance", tolerance)
    reasons = unstable(system)
    if any(reasons):
        raise ValueError(
            f"{where}: {join_reasons(reasons, system.bank)}. Only a stable system has Gramians; "
            "split the unstable part off and reduce the rest."
        )
