"""The smallest singular value of z - A at many points: 1/||(z - A)^-1||, the height of the pseudospectrum.

Lanczos on (z - T)^-* (z - T)^-1 for all points at once, T the Schur form (the method of Trefethen's survey of 1999):
two triangular solves per step, n^2 operations each. The estimate rises to 1/sigma_min^2, so sigma_min is approached
from above, and it stops when no point changes any more. Points that never settle, those with many singular values next
to the smallest, go to `by_svd`, the reference. For a normal A sigma_min is the distance to the spectrum.
"""

from __future__ import annotations

import numpy as np

from resolvent.analysis.matrices.exact import Array
from resolvent.analysis.matrices.schur import Schur, Shifted, solve, solve_adjoint

SMALL = 12  # up to this size computing all singular values is cheaper
LOOKS = (3, 5, 7, 10, 13, 17, 22, 28, 36, 46, 60)  # steps after which convergence is checked
SETTLED = 1e-9  # relative change of 1/sigma^2 between two checks below which a point has converged
EPS = float(np.finfo(float).eps)
FEW = 100  # points up to which inverted blocks are faster than steps row by row
CHUNK = 100_000  # numbers processed at once


def sigma_min(form: Schur, z: Array) -> Array:
    """sigma_min(z - A) for z (k,) -> (k,)."""
    n = len(form.T)
    if np.linalg.norm(np.triu(form.T, 1)) <= n * EPS * np.linalg.norm(form.T):  # normal, up to rounding
        return np.concatenate([np.abs(part[:, None] - form.poles).min(1) for part in _split(z, CHUNK // n)])
    method = by_svd if n <= SMALL else _by_lanczos
    return np.concatenate([method(form, part) for part in _split(z, CHUNK // n)])


def by_svd(form: Schur, z: Array) -> Array:
    """All singular values of each z - T."""
    n = len(form.T)
    shifted = (part[:, None, None] * np.eye(n) - form.T for part in _split(z, CHUNK // n**2))
    return np.concatenate([np.linalg.svd(each, compute_uv=False)[:, -1] for each in shifted])


def _split(z: Array, size: int) -> list[Array]:
    """At least one part, of at least one point each."""
    return np.array_split(z, max(1, -(-len(z) // max(1, size))))


def _by_lanczos(form: Schur, z: Array) -> Array:
    """Three-term recurrence q_{j+1} beta_j = M q_j - alpha_j q_j - beta_{j-1} q_{j-1} without reorthogonalisation."""
    n, k = len(form.T), len(z)
    start = np.random.default_rng(0).standard_normal((2, n, 1))
    q = np.broadcast_to((start[0] + 1j * start[1]) / np.linalg.norm(start), (n, k))
    before, beta, last = np.zeros((n, k), complex), np.zeros(k), np.zeros(k)
    alphas, betas = np.zeros((k, 0)), np.zeros((k, 0))
    out, alive = np.zeros(k), np.arange(k)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # at an eigenvalue, where sigma is zero
        blocks = Shifted(form.T, z) if k <= FEW else None
        for step in range(1, LOOKS[-1] + 1):
            shifts = z[alive]
            v = blocks.solve_normal(q) if blocks else solve_adjoint(form.T, shifts, solve(form.T, shifts, q))
            v -= beta * before
            alpha = (q.real * v.real + q.imag * v.imag).sum(0)
            v -= alpha * q
            alphas, betas = np.c_[alphas, alpha], np.c_[betas, beta]
            beta = np.sqrt((v.real**2 + v.imag**2).sum(0))
            if step in LOOKS:
                out[alive] = top = _largest(alphas, betas)
                going = np.isfinite(top) & (np.abs(top - last) > SETTLED * top)
                if not going.any():
                    break
                if step == LOOKS[-1]:
                    out[alive[going]] = by_svd(form, z[alive[going]]) ** -2.0
                alive, beta, last, alphas, betas = alive[going], beta[going], top[going], alphas[going], betas[going]
                q, v = q[:, going], v[:, going]
                if blocks:
                    blocks.keep(going)
            before, q = q, v / np.maximum(beta, 1e-290)
        return np.where(np.isfinite(out), 1 / np.sqrt(out), 0.0)


def _largest(alphas: Array, betas: Array) -> Array:
    """The largest eigenvalue of each tridiagonal matrix with diagonal alphas (k, j) and off-diagonal betas[:, 1:]."""
    finite: Array = np.isfinite(alphas + betas).all(1)
    j = alphas.shape[1]
    T = np.zeros((len(alphas), j, j))
    i = np.arange(j)
    T[:, i, i] = np.where(finite[:, None], alphas, 1.0)
    T[:, i[1:], i[:-1]] = np.where(finite[:, None], betas[:, 1:], 0.0)
    return np.where(finite, np.linalg.eigvalsh(T)[:, -1], np.inf)
