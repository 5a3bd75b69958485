"""Activations and their derivatives over rows of numbers, in loops that the compiler vectorises.

GELU needs the normal distribution. Its tail is Φ(-a) = exp(-a² / 2) Q(1 / (1 + a / 4)) with Q a polynomial, fitted to a
relative error of 1.3e-8 over 0 <= a <= 13.5, beyond which it is 0 in float32; in float64 it is the C library's.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import overload

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.exp_numba import exp
from resolvent.runtime.jit import Array
from resolvent.runtime.team import pointer

NAMES = ("none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")  # their indices are the codes of `activate`
_F = np.float32
_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7, _T8, _T9 = (
    _F(c)
    for c in (
        -2.354088734e-05,
        0.1002658824,
        0.09451876042,
        0.1229594916,
        -0.02438353526,
        0.3119174071,
        -0.3424043993,
        0.4017170451,
        -0.1990444533,
        0.03447733581,
    )
)
_QUARTER, _ONE = _F(0.25), _F(1)
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}  # no check of divisors


@njit(**_OPTIONS)
def _tail32(a: Any, bell: Any) -> Any:
    t = _ONE / (_ONE + _QUARTER * a)
    high = _T5 + t * (_T6 + t * (_T7 + t * (_T8 + t * _T9)))
    return bell * (_T0 + t * (_T1 + t * (_T2 + t * (_T3 + t * (_T4 + t * high)))))


@njit
def _tail64(a: Any, bell: Any) -> Any:
    return 0.5 * math.erfc(a * math.sqrt(0.5))


def _tail(a: Any, bell: Any) -> Any:
    """Φ(-a) for a >= 0, with bell = exp(-a² / 2); in compiled code only."""


@overload(_tail, strict=False)
def _choose_tail(a: Any, bell: Any) -> Any:
    if a == types.float32:
        return lambda a, bell: _tail32(a, bell)
    return lambda a, bell: _tail64(a, bell)


def activate(dtype: Any) -> int:
    """Apply the activation to `count` rows of n numbers x in place, and write its derivative at each."""
    size = dtype.bitwidth // 8

    def body(code: int, x: int, slopes: int, row: int, count: int, n: int) -> None:
        for t in range(count):
            own = t * row * size
            _activate(code, carray(pointer(x + own, dtype), (n,)), carray(pointer(slopes + own, dtype), (n,)))

    return leaf(body)


@njit(**_OPTIONS)
def _activate(code: int, x: Array, slope: Array) -> None:
    n = x.shape[0]
    one, half, two = x.dtype.type(1), x.dtype.type(0.5), x.dtype.type(2)
    if code == 1:
        for j in range(n):
            slope[j] = one if x[j] > 0 else x.dtype.type(0)
            x[j] = x[j] * slope[j]
    elif code == 2:
        for j in range(n):
            s = one / (one + exp(-x[j]))
            x[j], slope[j] = s, s * (one - s)
    elif code == 3:
        for j in range(n):
            s = two / (one + exp(-two * x[j])) - one
            x[j], slope[j] = s, one - s * s
    elif code == 4:
        for j in range(n):
            s = one / (one + exp(-x[j]))
            slope[j] = s * (one + x[j] * (one - s))
            x[j] = x[j] * s
    elif code == 5:
        root = x.dtype.type(0.3989422804014327)  # 1 / sqrt(2 pi)
        for j in range(n):
            bell = exp(-half * x[j] * x[j])
            tail = _tail(abs(x[j]), bell)
            below = tail if x[j] < 0 else one - tail
            slope[j] = below + x[j] * bell * root
            x[j] = x[j] * below
    elif code == 6:
        root, cube = x.dtype.type(0.7978845608028654), x.dtype.type(0.044715)  # sqrt(2 / pi)
        for j in range(n):
            v = x[j]
            s = one / (one + exp(-two * root * (v + cube * v * v * v)))  # (1 + tanh) / 2
            slope[j] = s + v * two * s * (one - s) * root * (one + x.dtype.type(3) * cube * v * v)
            x[j] = v * s
