"""The numerical range W(A) = {x* A x : |x| = 1}: a convex set around the spectrum that bounds the initial behaviour.

Its support in the direction t is the largest eigenvalue of the Hermitian part of e^(-it) A (Johnson 1978). The
abscissa, max Re W(A), is the initial growth rate of ||exp(t A)||; at zero or below, exp(t A) never grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.exact import Array, scale_of
from resolvent.analysis.matrices.peak import Peak, Samples, search
from resolvent.usage import numbers

RTOL = 1e-10


@dataclass(frozen=True)
class NumericalRange:
    """Boundary points of W(A) with their outer normal directions; W lies between the points and the tangents.

    radius_lower <= max |W(A)| <= radius_upper, by the search used for the H-infinity norm.

    Examples:
        >>> found = rv.analysis.numerical_range(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        >>> round(found.abscissa, 3)
        1.0
    """

    angles: Tensor  # (k,)
    boundary: Tensor  # complex (k,)
    support: Tensor  # (k,): W(A) lies in Re(e^(-i angle) z) <= support
    abscissa: float
    radius_lower: float
    radius_upper: float

    @property
    def radius(self) -> float:
        return self.radius_lower


def numerical_range(A: Matrix, points: int = 180) -> NumericalRange:
    """The boundary of W(A) at `points` directions, its abscissa and its radius.

    Examples:
        >>> rv.analysis.numerical_range(torch.eye(2), points=8).boundary.shape
        torch.Size([8])
    """
    matrix = checks.check_matrix("numerical_range", A).numpy()
    numbers.check_count("numerical_range", 3, points=points)
    unit = scale_of(matrix)  # W scales with A, and no entry is too large or small for products
    matrix = matrix / unit
    angles = np.linspace(0, 2 * math.pi, points, endpoint=False)
    mirrored = not np.iscomplexobj(matrix)  # W is symmetric: the second half of the angles repeats the first
    found = [_support(matrix, t) for t in (angles[: points // 2 + 1] if mirrored else angles)]
    support, edge = (unit * np.asarray(part) for part in zip(*found, strict=True))
    if mirrored:
        back = slice(points - len(edge), 0, -1)
        support, edge = np.concatenate([support, support[back]]), np.concatenate([edge, edge[back].conj()])
    peak = radius(matrix)
    return NumericalRange(
        torch.from_numpy(angles), torch.from_numpy(edge), torch.from_numpy(support), float(support[0]),
        unit * peak.lower, unit * peak.upper,
    )  # fmt: skip


def _support(A: Array, angle: float) -> tuple[float, complex]:
    """The support in one direction, and the point of the boundary that it touches."""
    import scipy.linalg

    top = [len(A) - 1] * 2
    values, vectors = scipy.linalg.eigh(_hermitian(A, np.asarray([angle]))[0], subset_by_index=top, check_finite=False)
    x = vectors[:, 0]
    return float(values[0]), complex(x.conj() @ A @ x)


def numerical_abscissa(A: Array) -> float:
    """max Re W(A), the logarithmic norm: ||exp(t A)|| <= exp(t abscissa)."""
    return float(np.linalg.eigvalsh((A + A.conj().T) / 2)[-1])


def radius(A: Array, rtol: float = RTOL) -> Peak:
    """max |W(A)| between its bounds."""
    return search(lambda t, _: _samples(A, t), lambda a, b: (a + b) / 2, _directions(A), rtol, budget=200_000)


def _directions(A: Array) -> Array:
    """Initial nodes: the full circle, or its upper half for a real A, whose W is symmetric."""
    return np.linspace(0, 2 * math.pi if np.iscomplexobj(A) else math.pi, 17)


def _samples(A: Array, angles: Array) -> Samples:
    """The support obeys h(t) >= radius cos(t - t0) around the direction t0 of the farthest point: the phase is t."""
    h = np.maximum(np.linalg.eigvalsh(_hermitian(A, angles))[:, -1], 0.0)
    noise = np.full_like(h, len(A) * np.finfo(float).eps * float(np.linalg.norm(A)))
    return Samples(np.maximum(h - noise, 0.0), h + noise, noise, angles)


def _hermitian(A: Array, angles: Array) -> Array:
    """(e^(-it) A + e^(it) A*) / 2 for each angle: (k, n, n)."""
    turned = np.exp(-1j * angles)[:, None, None] * A
    return (turned + turned.conj().swapaxes(-1, -2)) / 2
