"""The result of perturb-then-diagonalise, with all measurements needed to judge it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from resolvent.init.ptd_objective import Objective
from resolvent.ssm.response_grid import EigenResponse, Peak, dense_response, response_distance


@dataclass(frozen=True)
class PTD:
    """A + E = V diag(lam) V_inv, all in float64 or complex128.

    Eigenvalues of a real A + E are ordered: positive imaginary part ascending, real ones, then the conjugates of the
    first. Columns of V have unit norm. V is not unitary: its inverse is V_inv, not V^*.

    Examples:
        >>> found = rv.init.ptd("legs", 16)
        >>> found.kappa < 10, found.relative_size < 0.1, found.max_real < 0
        (True, True, True)
    """

    E: Tensor  # (n, n): real where A and the spectrum's symmetry are
    V: Tensor  # (n, n)
    V_inv: Tensor  # (n, n)
    lam: Tensor  # (n,)
    kappa: float  # condition number of V
    relative_size: float  # ||E||_2 / ||A||_2
    backward_error: float  # ||V diag(lam) V_inv - (A + E)||_2 / ||A||_2
    max_real: float  # largest real part of lam
    distance: float | None  # D = sup_w ||(i w - A - E)^-1 B - (i w - A)^-1 B||_2; None without a B
    distance_at: float | None  # the frequency of that supremum
    converged: bool
    message: str  # the outcome, and what to try if it is not good
    objective: Objective | None = None  # None: the perturbation was given
    value: float = float("nan")  # of the objective
    rounds: int = 0  # of the search
    seconds: float = 0.0  # processor time
    conjugate_closed: bool = True  # whether lam is closed under conjugation
    B: Tensor | None = field(default=None, repr=False)  # (n, m)

    @property
    def n(self) -> int:
        return len(self.lam)

    @property
    def stable(self) -> bool:
        return self.max_real < 0

    def copy(self) -> PTD:
        """A deep copy."""
        own = {name: getattr(self, name).clone() for name in ("E", "V", "V_inv", "lam")}
        return replace(self, **own, B=None if self.B is None else self.B.clone())

    def half(self) -> tuple[Tensor, Tensor, Tensor]:
        """lam (n/2,), V (n, n/2) and V_inv (n/2, n) of the members with positive imaginary part: y = 2 Re(C V x)."""
        k = self.n // 2
        if not self.conjugate_closed or self.n % 2 or bool((self.lam[:k].imag <= 0).any()):
            reals = int((self.lam.imag == 0).sum())
            raise ValueError(
                f"PTD.half: expected a spectrum of conjugate pairs alone, got one with {reals} real eigenvalues"
                f"{'' if self.conjugate_closed else ' that is not closed under conjugation'}; keep all states, or "
                "compute it with Search(pairs=True) from a real matrix of even size."
            )
        return self.lam[:k], self.V[:, :k], self.V_inv[:k]


def measure_ptd(A: Tensor, V: Tensor, lam: Tensor, B: Tensor | None = None, E: Tensor | None = None) -> PTD:
    """A + E = V diag(lam) V^-1 with its numbers; E is computed from V and lam unless given."""
    V_inv = torch.linalg.inv(V)
    product = (V * lam) @ V_inv
    closed = not A.is_complex() and _is_closed(lam)
    if E is None:
        E = product.real - A if closed else product - A
    scale = float(torch.linalg.matrix_norm(A, 2)) or 1.0
    peak = None if B is None else _distance(A, V, lam, V_inv, B)
    return PTD(
        E=E,
        V=V,
        V_inv=V_inv,
        lam=lam,
        kappa=float(torch.linalg.cond(V)),
        relative_size=float(torch.linalg.matrix_norm(E, 2)) / scale,
        backward_error=float(torch.linalg.matrix_norm(product - (A + E), 2)) / scale,
        max_real=float(lam.real.max()),
        distance=None if peak is None else peak.value,
        distance_at=None if peak is None else peak.frequency,
        converged=True,
        message="the perturbation was given; nothing was searched for.",
        conjugate_closed=closed or (A.is_complex() and _is_closed(lam)),
        B=B,
    )


def _distance(A: Tensor, V: Tensor, lam: Tensor, V_inv: Tensor, B: Tensor) -> Peak:
    perturbed = EigenResponse(V, lam, V_inv @ B.to(V.dtype))
    return response_distance(perturbed, dense_response(A, B), both_signs=A.is_complex() or not _is_closed(lam))


def _is_closed(lam: Tensor) -> bool:
    """Whether the conjugates of lam are lam again, up to rounding."""
    size = float(lam.abs().max())
    gap = (lam[:, None] - lam.conj()).abs().min(0).values
    return bool((gap <= 1e-9 * max(size, 1e-300)).all())
