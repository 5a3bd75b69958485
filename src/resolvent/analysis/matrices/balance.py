"""States rescaled to a common size, so that rounding errors do not depend on the units they were given in.

x = S x' with a diagonal S of powers of two maps (A, B, C) to (S^-1 A S, S^-1 B, C S): exactly, and the input-output map
is unchanged. The row and the column that couple a state to the other states, the inputs and the outputs get about the
same norm (Osborne 1960; all inputs and outputs together count as one more state).
"""

from __future__ import annotations

import numpy as np
import torch

from resolvent.analysis.matrices.exact import Array
from resolvent.ssm import Dense, Diagonal, System

GAIN = 8.0  # the norm must fall by at least this factor, or the units are kept


def balance(system: System) -> System:
    """The same bank of systems, rescaled; a diagonal A needs no rescaling."""
    if isinstance(system.A, Diagonal):
        return system
    A, n = system.A.dense(), system.states
    whole = torch.zeros(*system.bank, n + 1, n + 1, dtype=torch.float64)
    whole[..., :n, :n] = A.detach().abs()
    whole[..., :n, n], whole[..., n, :n] = system.B.detach().norm(dim=-1), system.C.detach().norm(dim=-2)
    units = [_find_units(one) for one in whole.reshape(-1, n + 1, n + 1).numpy()]
    s = torch.from_numpy(np.stack(units)).reshape(*system.bank, n).to(A.device, A.real.dtype)
    A = A / s[..., :, None] * s[..., None, :]
    return System(Dense(A), system.B / s[..., None], system.C * s[..., None, :], system.D, system.dt, system.delay)


def _find_units(whole: Array) -> Array:
    """The diagonal of S (n,), from the magnitudes (n + 1, n + 1) of the couplings."""
    from scipy.linalg.lapack import dgebal

    balanced, _, _, units, _ = dgebal(whole, scale=True, permute=False)
    gains = GAIN * np.linalg.norm(balanced) <= np.linalg.norm(whole)
    return units[:-1] / units[-1] if gains else np.ones(len(whole) - 1)
