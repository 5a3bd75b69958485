"""The resolvent (z - A)^-1 at many points from one Schur form A = U T U*: n^2 operations per point, no inverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.analysis.matrices.exact import Array

BLOCK = 16  # rows solved sequentially between matrix products


@dataclass(frozen=True)
class Schur:
    """T (n, n) upper triangular, U (n, n) unitary, both complex."""

    T: Array
    U: Array

    @staticmethod
    def of(A: Array) -> Schur:
        import scipy.linalg

        if not np.triu(A, 1).any():  # lower triangular: its own Schur form in reverse order, with exact eigenvalues
            flip = np.eye(len(A))[::-1].astype(complex)
            return Schur(np.ascontiguousarray(A[::-1, ::-1]).astype(complex), flip)
        if not np.tril(A, -1).any():
            return Schur(A.astype(complex), np.eye(len(A), dtype=complex))
        T, U = scipy.linalg.schur(A.astype(complex), output="complex")
        return Schur(T, U)

    @property
    def poles(self) -> Array:
        return np.diagonal(self.T).copy()


def solve(T: Array, z: Array, B: Array) -> Array:
    """X_k = (z_k - T)^-1 B_k for all k at once: z (k,), B (n, k) or (n, 1) -> (n, k). Not finite at an eigenvalue."""
    n = T.shape[0]
    X = np.array(np.broadcast_to(B, (n, len(z))), dtype=complex)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for end in range(n, 0, -BLOCK):
            start = max(end - BLOCK, 0)
            for j in range(end - 1, start - 1, -1):
                if j + 1 < end:
                    X[j] += T[j, j + 1 : end] @ X[j + 1 : end]
                X[j] /= z - T[j, j]
            if start:
                X[:start] += T[:start, start:end] @ X[start:end]
    return X


def solve_adjoint(T: Array, z: Array, B: Array) -> Array:
    """X_k = (z_k - T)^-* B_k: the same for the conjugate transpose."""
    flipped = np.ascontiguousarray(T[::-1, ::-1].conj().T)
    return solve(flipped, z.conj(), B[::-1])[::-1]
