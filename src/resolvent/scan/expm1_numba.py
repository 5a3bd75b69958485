"""e^x - 1 without cancellation, for x <= 0, in a form that the compiler can vectorise.

Near zero it is r + r² q(r) with the polynomial of `exp_numba`, which is made for |r| <= ln 2 / 2; beyond, where half of
1 is left at most, exp(x) less one. Numba's caches follow their own files only: touch the users when this changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from resolvent.scan import exp_numba as e

_HALF32, _HALF64 = np.float32(0.5), np.float64(0.5)
_NEAR32, _NEAR64 = np.float32(-0.3465), np.float64(-0.3465)
_ONE32, _ONE64 = np.float32(1), np.float64(1)
_P2, _P3, _P4, _P5, _P6 = e._P2, e._P3, e._P4, e._P5, e._P6  # doubled there
_Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8, _Q9 = e._Q2, e._Q3, e._Q4, e._Q5, e._Q6, e._Q7, e._Q8, e._Q9
_Q10, _Q11 = e._Q10, e._Q11


@njit(fastmath={"contract"})
def _expm1_32(x: Any, exp: Any) -> Any:
    q = _P2 + x * (_P3 + x * (_P4 + x * (_P5 + x * _P6)))
    near, far = x + _HALF32 * (x * x * q), exp - _ONE32
    return near if x > _NEAR32 else far


@njit(fastmath={"contract"})
def _expm1_64(x: Any, exp: Any) -> Any:
    q = _Q6 + x * (_Q7 + x * (_Q8 + x * (_Q9 + x * (_Q10 + x * _Q11))))
    q = _Q2 + x * (_Q3 + x * (_Q4 + x * (_Q5 + x * q)))
    near, far = x + _HALF64 * (x * x * q), exp - _ONE64
    return near if x > _NEAR64 else far


def expm1(x: Any, exp: Any) -> Any:
    """e^x - 1 for one float32 or float64 x <= 0 inside numba code, given e^x; in Python it is numpy's."""
    return np.expm1(x)


@overload(expm1, strict=False)  # the annotations differ, the arguments do not
def _choose_expm1(x: Any, exp: Any) -> Any:
    if x == types.float32:
        return lambda x, exp: _expm1_32(x, exp)
    if x == types.float64:
        return lambda x, exp: _expm1_64(x, exp)
    return None
