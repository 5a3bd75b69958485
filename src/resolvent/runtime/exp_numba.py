"""An exponential that the compiler can vectorise: no call, no table, no branch.

exp(x) = 2^k exp(r) with k = round(x / ln 2) and |r| <= ln 2 / 2. exp(r) is a minimax polynomial (degree 6 in float32,
11 in float64; relative error 3e-9 and 4e-18 before rounding), and 2^k is made from k's bits. Measured relative error:
below one unit in the last place. Results below sqrt(2) times the smallest normal number become 0, too
large ones inf, and NaN stays NaN; exp(0) is exactly 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

_F, _G = np.float32, np.float64

# Adding 1.5 2^23 (2^52) rounds to an integer and leaves it in the low bits; 126 (1022) is the exponent's bias less one.
# The missing factor 2 is in the polynomial's coefficients, so that 2^128 (2^1024) need not be representable.
_SHIFT32, _SHIFT64 = _F(12582912 + 126), _G(6755399441055744 + 1022)
_LOW32, _HIGH32, _LOW64, _HIGH64 = _F(-87.5), _F(89.0), _G(-708.5), _G(710.0)
_LOG2E32, _LOG2E64 = _F(1.4426950408889634), _G(1.4426950408889634)
# ln 2 in two parts: the first has few bits, so that k times it is exact
_LN2_HIGH32, _LN2_LOW32 = _F(0.693359375), _F(-2.1219444005469058e-4)
_LN2_HIGH64, _LN2_LOW64 = _G(0.6931471803691238), _G(1.9082149292705877e-10)

_P2, _P3, _P4, _P5, _P6 = (
    _F(2 * c)
    for c in (
        0.49999993395082747821,
        0.16666519849612398960,
        0.041668397249658544398,
        0.0083688116820102099970,
        0.0013814402293885896795,
    )
)
_Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8, _Q9, _Q10, _Q11 = (
    _G(2 * c)
    for c in (
        0.50000000000000107674,
        0.16666666666666409102,
        0.041666666666528709216,
        0.0083333333334961981143,
        0.0013888888944067015394,
        0.00019841269503870417545,
        2.4801492597130129244e-5,
        2.7557587819471053433e-6,
        2.7630442729862075038e-7,
        2.4999917971215311688e-8,
    )
)
_TWO32, _TWO64 = _F(2), _G(2)  # the doubled coefficients of 1 and r


@intrinsic
def _power_of_two(typingctx: Any, shifted: Any) -> Any:
    """The float whose exponent field is the integer in the low bits of `shifted`."""
    if shifted not in (types.float32, types.float64):
        return None
    width, mantissa = (32, 23) if shifted == types.float32 else (64, 52)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(width)
        bits = builder.shl(builder.bitcast(args[0], integer), ir.Constant(integer, mantissa))
        return builder.bitcast(bits, args[0].type)

    return shifted(shifted), codegen


@intrinsic
def _clamp(typingctx: Any, x: Any, low: Any, high: Any) -> Any:
    """x within [low, high]; NaN passes. Selects, because branches hide the minimum and maximum from the vectoriser."""
    if not x == low == high:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, floor, ceiling = args
        value = builder.select(builder.fcmp_ordered("<", value, floor), floor, value)
        return builder.select(builder.fcmp_ordered(">", value, ceiling), ceiling, value)

    return x(x, x, x), codegen


@njit(fastmath={"contract"})
def reduce32(x: Any) -> Any:
    """2 (exp(r) - 1) and 2^k / 2 of x = k ln 2 + r."""
    x = _clamp(x, _LOW32, _HIGH32)  # type: ignore[call-arg]  # numba passes the first one
    shifted = x * _LOG2E32 + _SHIFT32
    k = shifted - _SHIFT32
    r = (x - k * _LN2_HIGH32) - k * _LN2_LOW32
    q = _P2 + r * (_P3 + r * (_P4 + r * (_P5 + r * _P6)))
    return _TWO32 * r + r * r * q, _power_of_two(shifted)


@njit(fastmath={"contract"})
def reduce64(x: Any) -> Any:
    x = _clamp(x, _LOW64, _HIGH64)  # type: ignore[call-arg]
    shifted = x * _LOG2E64 + _SHIFT64
    k = shifted - _SHIFT64
    r = (x - k * _LN2_HIGH64) - k * _LN2_LOW64
    q = _Q6 + r * (_Q7 + r * (_Q8 + r * (_Q9 + r * (_Q10 + r * _Q11))))
    q = _Q2 + r * (_Q3 + r * (_Q4 + r * (_Q5 + r * q)))
    return _TWO64 * r + r * r * q, _power_of_two(shifted)


@njit(fastmath={"contract"})
def _exp32(x: Any) -> Any:
    twice, half = reduce32(x)
    return (_TWO32 + twice) * half


@njit(fastmath={"contract"})
def _exp64(x: Any) -> Any:
    twice, half = reduce64(x)
    return (_TWO64 + twice) * half


def exp(x: Any) -> Any:
    """e^x for one float32 or float64 inside numba code; in Python it is numpy's."""
    return np.exp(x)


def implement(function: Any, single: Any, double: Any) -> None:
    """Define numba's implementation of `function` of one number, in float32 and float64."""

    @overload(function, strict=False)  # the annotations differ, the arguments do not
    def choose(x: Any) -> Any:
        if x == types.float32:
            return lambda x: single(x)
        return (lambda x: double(x)) if x == types.float64 else None


implement(exp, _exp32, _exp64)


# e^x and e^x - 1 of one x, neither with cancellation: with ρ = r + r² q(r) = exp(r) - 1, e^x - 1 = 2^k ρ + (2^k - 1).
# Near zero k is 0 and this is ρ itself, elsewhere at least 0.29 remains.
_ONE32, _ONE64 = _F(1), _G(1)


@njit(fastmath={"contract"})
def _both32(x: Any) -> Any:
    twice, half = reduce32(x)  # 2ρ and 2^k / 2
    return (_TWO32 + twice) * half, twice * half + (_TWO32 * half - _ONE32)


@njit(fastmath={"contract"})
def _both64(x: Any) -> Any:
    twice, half = reduce64(x)
    return (_TWO64 + twice) * half, twice * half + (_TWO64 * half - _ONE64)


def exp_and_expm1(x: Any) -> Any:
    """(e^x, e^x - 1) for one float32 or float64 inside numba code; in Python numpy's."""
    return np.exp(x), np.expm1(x)


implement(exp_and_expm1, _both32, _both64)


# log(1 + e) = 2 atanh(z) = 2 z (1 + z^2 / 3 + z^4 / 5 + ...), z = e / (2 + e) <= 1/3: eight terms leave 2e-9
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (_F(1 / (2 * k + 1)) for k in range(1, 8))
_HALF32, _HALF64 = _F(0.5), _G(0.5)


@njit(fastmath={"contract"})
def _softplus32(x: Any) -> Any:
    e = _exp32(-abs(x))
    z = e / (_TWO32 + e)
    s = z * z
    series = s * (_L1 + s * (_L2 + s * (_L3 + s * (_L4 + s * (_L5 + s * (_L6 + s * _L7))))))
    return _HALF32 * (x + abs(x)) + _TWO32 * (z + z * series)


@njit(fastmath={"contract"})
def _softplus64(x: Any) -> Any:
    return _HALF64 * (x + abs(x)) + np.log1p(_exp64(-abs(x)))


def softplus(x: Any) -> Any:
    """log(1 + e^x) for one float32 or float64 inside numba code, to a few units in the last place for every x."""
    return np.logaddexp(0, x)


implement(softplus, _softplus32, _softplus64)
