"""States in units of a common size, so that no rounding hangs on the units that they were given in.

x = S x' with a diagonal S of powers of two turns (A, B, C) into (S^-1 A S, S^-1 B, C S): exactly, and the map from
inputs to outputs stays. Rows and columns of what joins a state to the others, to the inputs and to the outputs come to
about the same norm (Osborne 1960; all inputs and outputs together stand as one more state). Units that gain little are
left as they are.
"""

from __future__ import annotations

import numpy as np

from resolvent.analysis.matrices.exact import Array


GAIN = 8.0  # by which the norm falls at least


def state_units(A: Array, B: Array, C: Array) -> Array:
    """The diagonal of S (n,) for A (n, n), B (n, m) and C (p, n)."""
    from scipy.linalg.lapack import dgebal

    inputs, outputs = np.linalg.norm(B, axis=1, keepdims=True), np.linalg.norm(C, axis=0, keepdims=True)
    whole = np.block([[np.abs(A), inputs], [outputs, np.zeros((1, 1))]])
    balanced, _, _, units, _ = dgebal(whole, scale=True, permute=False)
    gains = GAIN * np.linalg.norm(balanced) <= np.linalg.norm(whole)
    return units[:-1] / units[-1] if gains else np.ones(len(A))


def balance(A: Array, B: Array, C: Array) -> tuple[Array, Array, Array]:
    """The system in those units."""
    s = state_units(A, B, C)
    return A / s[:, None] * s, B / s[:, None], C * s
