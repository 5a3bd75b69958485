"""The bounded-real lemma as a certificate that can be checked: P > 0 and the largest eigenvalue of one matrix.

For x_{k+1} = A x_k + B u_k, y_k = C x_k + D u_k (the delayed, control form) the inequality

    M = [ A^T P A - P + C^T C     A^T P B + C^T D           ]
        [ B^T P A + D^T C         B^T P B + D^T D - g^2 I   ]  <= 0,      P > 0

says that the storage x^T P x never grows by more than g^2 |u|^2 - |y|^2 in a step. Summed over time from x = 0:
sum |y|^2 <= g^2 sum |u|^2 for every input. M < 0 is the strict form. It is checked in units of g for the
input, with B / g, D / g and 1 in place of B, D and g: the eigenvalues keep their signs, and g may be tiny.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.ssm.system import System


@dataclass(frozen=True)
class BoundedReal:
    """A gain `gamma` with its proof: storage matrix `P` and the matrix inequality's largest eigenvalue, in float64.

    Examples:
        >>> proof = rv.L2RU(2, gamma=0.5).certificate()
        >>> proof.gamma <= 0.5, proof.holds
        (True, True)
    """

    gamma: float
    P: Tensor  # (n, n)
    largest_eigenvalue: float
    smallest_storage: float  # smallest eigenvalue of P
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether P > 0 and M <= tolerance; False if anything is NaN."""
        return self.smallest_storage > 0 and self.largest_eigenvalue <= self.tolerance


def bounded_real(system: System, gamma: float, P: Tensor, *, tolerance: float = 0.0) -> BoundedReal:
    """Check P for one discrete system (real, or with conjugate pairs, then in real coordinates), in float64.

    Examples:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> system = rv.System(0.5 * one, one, one, 0 * one, dt=1.0).delayed()  # gain 1 / (1 - 0.5)
        >>> rv.ssm.bounded_real(system, 2.5, 1.4 * one).holds
        True
    """
    if not gamma > 0:
        raise ValueError(f"bounded_real: gamma must be positive, got {gamma}; a gain of zero has no certificate.")
    if system.bank or system.time_varying:
        raise ValueError("bounded_real: expected one time-invariant system; call block_diagonal() on a bank first.")
    A, B, C, D = control_form(system)
    P = P.detach().double()
    M = bounded_real_matrix(A, B / gamma, C, D / gamma, P, 1.0)
    if not (M.isfinite().all() and P.isfinite().all()):
        return BoundedReal(gamma, P, float("nan"), float("nan"), tolerance)
    largest = float(torch.linalg.eigvalsh(M)[-1])
    return BoundedReal(gamma, P, largest, float(torch.linalg.eigvalsh(P)[0]), tolerance)


def bounded_real_matrix(A: Tensor, B: Tensor, C: Tensor, D: Tensor, P: Tensor, gamma: float) -> Tensor:
    """M (n + m, n + m), symmetric."""
    K = torch.cat([torch.cat([A, B], 1), torch.cat([C, D], 1)])  # (n + p, n + m)
    after = torch.block_diag(P, torch.eye(C.shape[0], dtype=P.dtype, device=P.device))
    before = torch.block_diag(P, gamma**2 * torch.eye(B.shape[1], dtype=P.dtype, device=P.device))
    M = K.mT @ after @ K - before
    return (M + M.mT) / 2


def control_form(system: System) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, C, D of the delayed form in float64; complex ones must have zero imaginary parts."""
    system = system.delayed()
    parts = [t.detach() for t in (system.A.dense(), system.B, system.C, system.D)]
    if any(bool((t.imag != 0).any()) for t in parts if t.is_complex()):
        raise ValueError("bounded_real: expected real matrices, got complex ones; hand over system.real() instead.")
    A, B, C, D = ((t.real if t.is_complex() else t).double() for t in parts)
    return A, B, C, D
