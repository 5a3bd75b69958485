"""How far a perturbed input moves the output of a linear system: Theorem 4.1.1 of Qi et al. 2024, where valid.

The error is y' - y = H e, with e of mean mu and second moment E[e_k^2] = M in every entry (its own M if entries are
independent; at most M in the upper bounds). Per bank entry, at every length at once:

    lower   mu^2 ||H 1||^2                                 Jensen: E||H e||^2 >= ||H E e||^2; it is 0 for mu = 0
    exact   (M - mu^2) ||H||_F^2 + mu^2 ||H 1||^2          for independent entries
    upper   M sum_t (sum_s |H_ts|)^2                       for any dependence between them, and for |e_k| <= sqrt(M)

The theorem's own form, with c1, c2 the extreme eigenvalues of E^T E (E the lower triangle of ones),

    mu^2 c1 sum_j lam_min^2j (C B)^2 <= E||H e||^2 <= c2 M sum_j |lam|_max^2j (sum_n |C_n B_n|)^2

restores the squares that (11) and (16) lose. Its right side holds for every diagonal system; its left side only if
all lam, C B and D are real and not negative, and is None otherwise: then modes can cancel one another.

The direct term D is part of H. A selective layer is bounded at the selection of its unperturbed input,
`layer.linearise(x)`; the effect of the perturbation on the selection is ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.systems.response import discrete_response
from resolvent.ssm.system import Dense, Diagonal, System, check_discrete
from resolvent.usage.numbers import check_count

REAL = 1e-9  # imaginary part, relative to the modulus, treated as rounding


@dataclass(frozen=True, eq=False)
class ErrorBounds:
    """Values for the lengths 1 .. l along the last axis, one row for each member of the bank: (..., l).

    Examples:
        >>> system = rv.LRU(1, 4).double().system()
        >>> found = rv.analysis.error_bounds(system, 20, second_moment=0.01)
        >>> bool((found.exact <= found.upper * (1 + 1e-9)).all())
        True
    """

    lower: Tensor
    exact: Tensor
    upper: Tensor
    theorem_lower: Tensor | None
    theorem_upper: Tensor | None
    reason: str  # why a side of the theorem is missing
    mean: float
    second_moment: float
    measured: Tensor | None = None  # (...,) ||y' - y||^2 at the full length

    @property
    def length(self) -> int:
        return self.exact.shape[-1]

    def growth(self) -> dict[str, list[float] | None]:
        """Sums over the bank as functions of the length, for plots."""
        kept = {n: getattr(self, n) for n in ("lower", "exact", "upper", "theorem_lower", "theorem_upper")}
        drawn = {n: None if v is None else _total(v).tolist() for n, v in kept.items()}
        return {"length": [float(t) for t in range(1, self.length + 1)], **drawn}

    def as_dict(self) -> dict[str, Any]:
        """Plain data: totals at the full length and the curves."""
        measured = None if self.measured is None else float(self.measured.sum())
        return {
            "mean": self.mean, "second_moment": self.second_moment, "length": self.length, "measured": measured,
            "reason": self.reason, "growth": self.growth(),
        }  # fmt: skip


@torch.no_grad()
def error_bounds(
    system: System,
    length: int | None = None,
    *,
    mean: float = 0.0,
    second_moment: float,
    measured: Tensor | None = None,
) -> ErrorBounds:
    """Bounds on E||y' - y||^2 for a discrete system, fixed or time-varying, over `length` steps.

    length     of a fixed system; a time-varying one has its own
    measured   ||y' - y||^2 (...,) of perturbations with |e_k| <= sqrt(second_moment), e.g. from an attack; exceeding
               the upper bound is an error, because no such perturbation exists

    Examples:
        >>> found = rv.analysis.error_bounds(rv.LRU(1, 4).double().system(), 20, second_moment=0.01)
        >>> found.exact.shape[-1]
        20
    """
    _check(system, length, mean, second_moment)
    system = system.wide()
    rows = _varying(system) if system.time_varying else _compute_fixed(system, int(length or 0))
    step, energy, absolute = (v.square() if i != 1 else v for i, v in enumerate(rows))
    lower = mean**2 * step.sum(-2).cumsum(-1)
    upper = second_moment * absolute.sum(-2).cumsum(-1)
    exact = (second_moment - mean**2) * energy.sum(-2).cumsum(-1) + lower
    below, above, reason = _theorem(system, lower.shape[-1], mean, second_moment)
    found = ErrorBounds(lower, exact, upper, below, above, reason, mean, second_moment, measured)
    if measured is not None:
        _check_measured(measured, upper[..., -1])
    return found


Rows = tuple[Tensor, Tensor, Tensor]
"""Per output and step, (..., p, l): sum_s H_ts, sum_s |H_ts|^2, sum_s |H_ts|, inputs summed as well."""


def _compute_fixed(system: System, l: int) -> Rows:
    """From the kernel h: each row of H extends the previous one by an entry, so everything is a running sum."""
    h = impulse(system, l)  # (..., p, m, l)
    return h.sum(-2).cumsum(-1), h.square().sum(-2).cumsum(-1), h.abs().sum(-2).cumsum(-1)


def impulse(system: System, l: int) -> Tensor:
    """The real impulse response with the direct term: (..., p, m, l) in float64."""
    h = discrete_response(system, l)
    return h.real if h.is_complex() else h


def _varying(system: System) -> Rows:
    """One pass over time: the response to ones, the Gramian P_t = A_t P_{t-1} A_t^T + B_t B_t^T, and moduli for |H|.

    The last is exact if no two states of opposite sign contribute to one output; otherwise an upper bound.
    """
    system = system.real() if system.dtype.is_complex else system
    n, lead = system.states, system.bank
    x = system.B.new_zeros(*lead, n, 1)
    r, P = x.clone(), system.B.new_zeros(*lead, n, n)
    rows: list[Rows] = []
    for t in range(system.B.shape[-3]):
        B, C, D = (m.select(-3, t) for m in (system.B, system.C, system.D))
        A, A_abs = _at(system, t)
        x, r, P = A.apply(x), A_abs.apply(r), A.apply(A.apply(P).mT)
        now = C @ B + D  # (..., p, m)
        step = (C @ x)[..., 0] + now.sum(-1)
        energy = torch.einsum("...pn,...nk,...pk->...p", C, P, C) + now.square().sum(-1)
        rows.append((step, energy, (C.abs() @ r)[..., 0] + now.abs().sum(-1)))
        x, r, P = x + B.sum(-1, keepdim=True), r + B.abs().sum(-1, keepdim=True), P + B @ B.mT
    step, energy, absolute = (torch.stack(v, -1) for v in zip(*rows, strict=True))
    return step, energy, absolute


def _at(system: System, t: int) -> tuple[Diagonal | Dense, Diagonal | Dense]:
    """A_t and its entrywise modulus."""
    if isinstance(system.A, Diagonal):
        lam = system.A.lam.select(-2, t)
        return Diagonal(lam), Diagonal(lam.abs())
    matrix = system.A.dense().select(-3, t)
    return Dense(matrix), Dense(matrix.abs())


def triangle_eigenvalues(l: int) -> tuple[float, float]:
    """c1 and c2, the extreme eigenvalues of E^T E: 1 / (4 sin^2((2k - 1) pi / (4 l + 2))) at k = l and k = 1."""
    angle = math.pi / (4 * l + 2)
    return 1 / (4 * math.sin((2 * l - 1) * angle) ** 2), 1 / (4 * math.sin(angle) ** 2)


def _theorem(system: System, l: int, mean: float, moment: float) -> tuple[Tensor | None, Tensor | None, str]:
    if system.time_varying or not isinstance(system.A, Diagonal):
        kind = "time-varying" if system.time_varying else type(system.A).__name__
        return None, None, f"the theorem's form is for fixed diagonal systems; this one is {kind}"
    if system.delay:
        return None, None, "the theorem's form is for systems without delay"
    lam, weight = system.A.lam, system.C[..., :, None, :] * system.B.mT[..., None, :, :]  # (..., p, m, n)
    j = torch.arange(l, dtype=torch.float64, device=lam.device)
    c1, c2 = zip(*(triangle_eigenvalues(k) for k in range(1, l + 1)), strict=True)
    high = weight.abs().sum(-1, keepdim=True) * _power(lam.abs().amax(-1), j)[..., None, None, :]  # (..., p, m, l)
    high[..., 0] += system.D.abs()
    above = moment * j.new_tensor(c2) * _both(high).sum(-2).cumsum(-1)
    signed = torch.cat([lam.flatten(), weight.flatten(), system.D.flatten()])
    if not bool(_not_negative(signed).all()):
        return None, above, "the lower side needs real lam, C B and D that are not negative: modes may cancel"
    low = weight.real.sum(-1, keepdim=True) * _power(lam.real.amin(-1), j)[..., None, None, :]
    low[..., 0] += system.D.real
    return mean**2 * j.new_tensor(c1) * _both(low).sum(-2).cumsum(-1), above, ""


def _both(rows: Tensor) -> Tensor:
    """(sum over inputs)^2: in the worst case all inputs are perturbed alike. (..., p, m, l) -> (..., p, l)."""
    return rows.sum(-2).square()


def _power(base: Tensor, j: Tensor) -> Tensor:
    return base.double()[..., None] ** j


def _not_negative(z: Tensor) -> Tensor:
    if not z.is_complex():
        return z >= 0
    return (z.real >= 0) & (z.imag.abs() <= REAL * z.abs())


def _total(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1]).sum(0)


def _check(system: System, length: int | None, mean: float, second_moment: float) -> None:
    check_discrete("error_bounds", system, "use layer.system()")
    if system.time_varying and (length not in (None, system.B.shape[-3]) or system.delay):
        raise ValueError(
            f"error_bounds: a time-varying system has its own length {system.B.shape[-3]} and no delay; "
            f"got length {length}, delay {system.delay}."
        )
    if not system.time_varying:
        check_count("error_bounds", 1, length=length)
    if not (math.isfinite(mean) and 0 <= second_moment < math.inf):
        raise ValueError(f"error_bounds: mean and second_moment must be finite, got {mean} and {second_moment}.")
    if second_moment < mean**2 * (1 - 1e-12):
        raise ValueError(
            f"error_bounds: E[e^2] is at least (E e)^2 = {mean**2:.6g}, but second_moment is {second_moment:.6g}."
        )


def _check_measured(measured: Tensor, upper: Tensor) -> None:
    over = measured.double() > upper * (1 + 1e-6)
    if bool(over.any()):
        where = tuple(int(i) for i in over.nonzero()[0])
        raise ValueError(
            f"error_bounds: the measured error at {where} is {float(measured[where]):.6g}, above the bound "
            f"{float(upper.expand_as(measured)[where]):.6g} that holds for every |e_k| <= sqrt(second_moment): the "
            "perturbation was larger, or the measured map is not this system."
        )
