"""A given system as a contraction: its matrices in the coordinates of a storage function that proves its gain.

With P = S^T S and z = S x the bounded-real inequality says that K = [S A S^-1, S B / g; C S^-1, D / g] has |K| <= 1.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ssm.contraction import rounding_margin, spectral_norm

SLACKS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of |C|^2: margins in the inequality, largest first


def contraction_of(A: Tensor, B: Tensor, C: Tensor, D: Tensor, gamma: float, P: Tensor | None = None) -> Tensor:
    """K (n + d, n + d) in float64, |K| < 1 with a margin for rounding, or an error that says why there is none.

    d is the larger number of inputs and outputs: the smaller one is padded with zero rows or columns.
    """
    A, B, C, D = _square(*_check(A, B, C, D))
    if not 0 < gamma < float("inf"):
        raise ValueError(f"L2RU.from_system: gamma must be positive and finite, got {gamma}.")
    stored = _storages(A, B, C, D, gamma) if P is None else [P.detach().double()]
    most = rounding_margin(A.shape[0] + D.shape[0])
    found = [K for K in (_in_storage(A, B, C, D, gamma, S) for S in stored) if K is not None]
    sizes = [spectral_norm(K) for K in found]
    if not found or min(sizes) > most:
        least = f"{min(sizes):.8f}" if found else "none"
        proof = "this P" if P is not None else "any P"
        raise ValueError(
            f"L2RU.from_system: {proof} must prove a gain below gamma={gamma:g} with room for rounding (|K| < "
            f"{most:.8f}), got |K| = {least}; raise gamma, or check that the system is stable and its gain is smaller."
        )
    return found[int(np.argmin(sizes))]


def _check(A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> tuple[Tensor, ...]:
    n, (outputs, inputs) = A.shape[0], D.shape if D.dim() == 2 else (0, 0)
    shapes = {"A": (n, n), "B": (n, inputs), "C": (outputs, n), "D": (outputs, inputs)}
    for (name, shape), t in zip(shapes.items(), (A, B, C, D), strict=True):
        if t.is_complex() or tuple(t.shape) != shape or not t.numel():
            raise ValueError(
                f"L2RU.from_system: expected a real {name} of shape {shape}, of one number at least, got "
                f"{tuple(t.shape)}; n is told by A (n, n), inputs and outputs by D (outputs, inputs)."
            )
    return tuple(t.detach().double() for t in (A, B, C, D))


def _square(A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> tuple[Tensor, ...]:
    outputs, inputs = D.shape
    more, further = max(outputs - inputs, 0), max(inputs - outputs, 0)
    return A, F.pad(B, (0, more)), F.pad(C, (0, 0, 0, further)), F.pad(D, (0, more, 0, further))


def _in_storage(A: Tensor, B: Tensor, C: Tensor, D: Tensor, gamma: float, P: Tensor) -> Tensor | None:
    S, failed = torch.linalg.cholesky_ex((P + P.mT) / 2)
    if int(failed):
        return None
    S = S.mT  # P = S^T S
    back = torch.linalg.solve_triangular(S, torch.cat([S @ A, C]), upper=True, left=False)  # [S A; C] S^-1
    return torch.cat([back, torch.cat([S @ B, D]) / gamma], 1)


def _storages(A: Tensor, B: Tensor, C: Tensor, D: Tensor, gamma: float) -> list[Tensor]:
    """Solutions of the bounded-real Riccati equation with more or less margin: C^T C + s I in place of C^T C."""
    from scipy.linalg import LinAlgError, solve_discrete_are  # keeps scipy out of the import of the layers

    a, b, c, e = (t.numpy() for t in (A, B, C, D))
    size = max(float(np.linalg.norm(c) ** 2), 1e-12)
    found = []
    for slack in SLACKS:
        q = c.T @ c + slack * size * np.eye(a.shape[0])
        try:
            P = solve_discrete_are(a, b, q, e.T @ e - gamma**2 * np.eye(e.shape[1]), s=c.T @ e)
        except (LinAlgError, ValueError):
            continue
        if np.isfinite(P).all():
            found.append(torch.from_numpy(P))
    return found
