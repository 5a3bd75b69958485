"""e^x and e^x - 1 of one x, neither with cancellation, in a form that the compiler can vectorise.

As in `exp_numba` x = k ln 2 + r, e^x = 2^k (1 + ρ), ρ = r + r² q(r). Then e^x - 1 = 2^k ρ + (2^k - 1): near zero k is
0 and this is ρ itself, elsewhere at least 0.29 is left. Numba's caches follow their own files only: touch the users
when this changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from resolvent.runtime.exp_numba import implement, reduce32, reduce64

_TWO32, _TWO64, _ONE32, _ONE64 = np.float32(2), np.float64(2), np.float32(1), np.float64(1)


@njit(fastmath={"contract"})
def _both32(x: Any) -> Any:
    twice, half = reduce32(x)  # 2ρ and 2^k / 2
    return (_TWO32 + twice) * half, twice * half + (_TWO32 * half - _ONE32)


@njit(fastmath={"contract"})
def _both64(x: Any) -> Any:
    twice, half = reduce64(x)
    return (_TWO64 + twice) * half, twice * half + (_TWO64 * half - _ONE64)


def exp_and_expm1(x: Any) -> Any:
    """(e^x, e^x - 1) for one float32 or float64 inside numba code; in Python they are numpy's."""
    return np.exp(x), np.expm1(x)


implement(exp_and_expm1, _both32, _both64)
