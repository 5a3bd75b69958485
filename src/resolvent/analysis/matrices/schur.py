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


class Shifted:
    """(z_k - T)^-1 for repeated use: the diagonal blocks of every z_k - T are inverted once, by halves.

    Then a solve takes one product for each block of rows instead of one step for each row.
    """

    def __init__(self, T: Array, z: Array) -> None:
        n, blocks = len(T), -(-len(T) // BLOCK)
        self.n, self.rows = n, [slice(i * BLOCK, (i + 1) * BLOCK) for i in range(blocks)]
        self.T = np.zeros((blocks * BLOCK, blocks * BLOCK), complex)
        self.T[:n, :n] = T
        own = np.stack([self.T[rows, rows] for rows in self.rows])  # (blocks, BLOCK, BLOCK)
        d = z[:, None] - np.diagonal(self.T)
        d[:, n:] = 1.0
        Y = np.zeros((len(z), *own.shape), complex)
        i, h = np.arange(BLOCK), 1
        Y[..., i, i] = (1 / d).reshape(len(z), blocks, BLOCK)
        while h < BLOCK:
            for s in range(0, BLOCK, 2 * h):
                a, c = slice(s, s + h), slice(s + h, s + 2 * h)
                Y[..., a, c] = Y[..., a, a] @ (own[:, a, c] @ Y[..., c, c])
            h *= 2
        self.inverses = Y  # (k, blocks, BLOCK, BLOCK)

    def keep(self, which: Array) -> None:
        """Drop the points that are not marked."""
        self.inverses = self.inverses[which]

    def solve_normal(self, B: Array) -> Array:
        """(z_k - T)^-* (z_k - T)^-1 B_k: (n, k) -> (n, k)."""
        X = np.zeros((len(self.T), B.shape[1]), complex)
        X[: self.n] = B
        for i, rows in reversed(list(enumerate(self.rows))):
            X[rows] = (self.inverses[:, i] @ X[rows].T[..., None])[..., 0].T
            X[: rows.start] += self.T[: rows.start, rows] @ X[rows]
        for i, rows in enumerate(self.rows):
            X[rows] += self.T[: rows.start, rows].conj().T @ X[: rows.start]
            X[rows] = (X[rows].T.conj()[:, None] @ self.inverses[:, i])[:, 0].conj().T
        return X[: self.n]
