"""e^x and e^x - 1 of one x, neither with cancellation, in a form that the compiler can vectorise.

As in `exp_numba` x = k ln 2 + r, e^x = 2^k (1 + ρ), ρ = r + r² q(r). Then e^x - 1 = 2^k ρ + (2^k - 1): near zero k is
0 and this is ρ itself, elsewhere at least 0.29 is left. Numba's caches follow their own files only: touch the users
when this changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from resolvent.runtime import exp_numba as own

_POWER, _CLAMP = own._power_of_two, own._clamp
_LOW32, _HIGH32, _LOW64, _HIGH64 = own._LOW32, own._HIGH32, own._LOW64, own._HIGH64
_LOG2E32, _SHIFT32, _LN2_HIGH32, _LN2_LOW32 = own._LOG2E32, own._SHIFT32, own._LN2_HIGH32, own._LN2_LOW32
_LOG2E64, _SHIFT64, _LN2_HIGH64, _LN2_LOW64 = own._LOG2E64, own._SHIFT64, own._LN2_HIGH64, own._LN2_LOW64
_P2, _P3, _P4, _P5, _P6 = own._P2, own._P3, own._P4, own._P5, own._P6
_Q2, _Q3, _Q4, _Q5, _Q6, _Q7 = own._Q2, own._Q3, own._Q4, own._Q5, own._Q6, own._Q7
_Q8, _Q9, _Q10, _Q11 = own._Q8, own._Q9, own._Q10, own._Q11
_TWO32, _TWO64, _ONE32, _ONE64 = np.float32(2), np.float64(2), np.float32(1), np.float64(1)


@njit(fastmath={"contract"})
def _both32(x: Any) -> Any:
    x = _CLAMP(x, _LOW32, _HIGH32)  # type: ignore[call-arg]  # numba passes the first one
    shifted = x * _LOG2E32 + _SHIFT32
    k = shifted - _SHIFT32
    r = (x - k * _LN2_HIGH32) - k * _LN2_LOW32
    q = _P2 + r * (_P3 + r * (_P4 + r * (_P5 + r * _P6)))
    twice, half = _TWO32 * r + r * r * q, _POWER(shifted)  # 2ρ and 2^k / 2
    return (_TWO32 + twice) * half, twice * half + (_TWO32 * half - _ONE32)


@njit(fastmath={"contract"})
def _both64(x: Any) -> Any:
    x = _CLAMP(x, _LOW64, _HIGH64)  # type: ignore[call-arg]
    shifted = x * _LOG2E64 + _SHIFT64
    k = shifted - _SHIFT64
    r = (x - k * _LN2_HIGH64) - k * _LN2_LOW64
    q = _Q6 + r * (_Q7 + r * (_Q8 + r * (_Q9 + r * (_Q10 + r * _Q11))))
    q = _Q2 + r * (_Q3 + r * (_Q4 + r * (_Q5 + r * q)))
    twice, half = _TWO64 * r + r * r * q, _POWER(shifted)
    return (_TWO64 + twice) * half, twice * half + (_TWO64 * half - _ONE64)


def exp_and_expm1(x: Any) -> Any:
    """(e^x, e^x - 1) for one float32 or float64 inside numba code; in Python they are numpy's."""
    return np.exp(x), np.expm1(x)


@overload(exp_and_expm1, strict=False)  # the annotations differ, the arguments do not
def _choose(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _both32(x)
    if x == types.float64:
        return lambda x: _both64(x)
    return None
