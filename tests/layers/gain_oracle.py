"""The H-infinity norm by the symplectic pencil, in numpy and scipy: shares no code with the library.

For x+ = A x + B u, y = C x + D u with A stable, g is a singular value of the transfer function at e^(i w) exactly when
e^(i w) is an eigenvalue of the pencil of the optimality conditions of max |y|^2 - g^2 |u|^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

NEAR = 1e-4  # eigenvalues this close to the unit circle are looked at


def control_matrices(system: Any) -> tuple[np.ndarray, ...]:
    """(A, B, C, D) of a system with delay as complex arrays."""
    assert system.delay
    return tuple(t.detach().numpy().astype(complex) for t in (system.A.dense(), system.B, system.C, system.D))


def response(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray, angle: float) -> float:
    """The largest singular value of C (z I - A)^-1 B + D at z = e^(i angle)."""
    z = np.exp(1j * angle)
    return float(np.linalg.norm(C @ np.linalg.solve(z * np.eye(len(A)) - A, B) + D, 2))


def crossings(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray, g: float) -> np.ndarray:
    """Angles at which some singular value may equal g."""
    n, m = B.shape
    R = g**2 * np.eye(m) - D.conj().T @ D
    F = A + B @ np.linalg.solve(R, D.conj().T @ C)
    Q = C.conj().T @ (C + D @ np.linalg.solve(R, D.conj().T @ C))
    zero = np.zeros((n, n))
    left = np.block([[F, zero], [-Q, np.eye(n)]])
    right = np.block([[np.eye(n), -B @ np.linalg.solve(R, B.conj().T)], [zero, F.conj().T]])
    lam = scipy.linalg.eigvals(left, right)
    lam = lam[np.isfinite(lam)]
    return np.sort(np.angle(lam[np.abs(np.abs(lam) - 1) < NEAR]))


def exceeds(system: Any, g: float) -> bool:
    """Whether the H-infinity norm is above g (1 + 1e-9), or the system is not stable."""
    A, B, C, D = control_matrices(system)
    if np.abs(np.linalg.eigvals(A)).max() >= 1 or np.linalg.norm(D, 2) >= g:
        return True
    at = crossings(A, B, C, D, g)
    between = (at + np.roll(at, -1)) / 2
    angles = np.concatenate([at, between, np.linspace(0, np.pi, 9)])
    return any(response(A, B, C, D, angle) > g * (1 + 1e-9) for angle in angles)


def hinf(system: Any, points: int = 4001) -> float:
    """A lower bound on a grid, tight for smooth responses."""
    matrices = control_matrices(system)
    return max(response(*matrices, angle) for angle in np.linspace(0, np.pi, points))
