"""Pseudospectra: where the resolvent is large, and thus where a small change of A may move an eigenvalue.

    z is in the eps-pseudospectrum of A  <=>  ||(z - A)^-1|| > 1/eps  <=>  sigma_min(z - A) < eps

(Trefethen and Embree 2005). For a normal A it is the set of points within eps of the spectrum; for HiPPO-LegS it
reaches far beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.schur import Schur
from resolvent.analysis.matrices.sigma_min import sigma_min
from resolvent.usage import numbers


@dataclass(frozen=True)
class Pseudospectrum:
    """sigma_min(z - A) at z = re[j] + i im[i]; its level lines are the boundaries of the pseudospectra.

    Examples:
        >>> found = rv.analysis.pseudospectrum(torch.diag(torch.tensor([-1.0, -2.0])), points=10)
        >>> found.sigma.shape, found.eigenvalues.shape
        (torch.Size([10, 10]), torch.Size([2]))
    """

    re: Tensor  # (x,)
    im: Tensor  # (y,)
    sigma: Tensor  # (y, x)
    eigenvalues: Tensor  # (n,)

    @property
    def resolvent_norm(self) -> Tensor:
        """||(z - A)^-1|| (y, x), infinite at eigenvalues."""
        return 1 / self.sigma


def pseudospectrum(A: Matrix, re: Any = None, im: Any = None, points: int = 100) -> Pseudospectrum:
    """sigma_min on a grid: axes `re` (x,) and `im` (y,), or `points` each around the spectrum.

    Examples:
        >>> rv.analysis.pseudospectrum(rv.ssm.hippo("legs", 4)[0], points=8).sigma.shape
        torch.Size([8, 8])
    """
    matrix = checks.check_matrix("pseudospectrum", A).numpy()
    numbers.check_count("pseudospectrum", 2, points=points)
    form = Schur.of(matrix)
    x = _axis("re", re, np.real(form.poles), form, points)
    y = _axis("im", im, np.imag(form.poles), form, points)
    mirrored = im is None and not np.iscomplexobj(matrix)  # sigma is the same at z and conj(z)
    rows = y[points // 2 :] if mirrored else y
    z = x[None, :] + 1j * rows[:, None]
    sigma = sigma_min(form, z.ravel()).reshape(z.shape)
    if mirrored:
        sigma = np.concatenate([sigma[::-1][: points // 2], sigma])
    return Pseudospectrum(*(torch.from_numpy(np.ascontiguousarray(t)) for t in (x, y, sigma, form.poles)))


def resolvent_norm(A: Matrix, z: Any) -> Tensor:
    """||(z - A)^-1||_2 at the points z, a number or a tensor of any shape; infinite at eigenvalues.

    Examples:
        >>> float(rv.analysis.resolvent_norm(torch.eye(2), 3.0))
        0.5
    """
    matrix = checks.check_matrix("resolvent_norm", A).numpy()
    points = torch.as_tensor(z)
    if points.numel() == 0 or not bool(torch.isfinite(points).all()):
        raise ValueError("resolvent_norm: z must be one or more finite points of the plane.")
    flat = points.detach().to("cpu", torch.complex128).reshape(-1).resolve_conj().numpy()
    return 1 / torch.from_numpy(sigma_min(Schur.of(matrix), flat)).reshape(points.shape)


def _axis(name: str, given: Any, parts: np.ndarray, form: Schur, points: int) -> np.ndarray:
    if given is not None:
        axis = checks.check_axis("pseudospectrum", name, given)
        if axis.dim() != 1:
            raise ValueError(f"pseudospectrum: {name} must be one axis (k,), got {tuple(axis.shape)}.")
        return axis.detach().to("cpu", torch.float64).numpy()
    low, high = float(parts.min()), float(parts.max())
    spread = max(np.ptp(np.real(form.poles)), np.ptp(np.imag(form.poles)), 0.1 * float(np.linalg.norm(form.T, 2)), 1e-3)
    return np.linspace(low - 0.5 * spread, high + 0.5 * spread, points)
