"""The geometric sums of the generalisation bound, for any rho > 0 and T, without overflow or cancellation.

    S1 = sum_{t<T} rho^t   = (1 - rho^T) / (1 - rho)
    S2 = sum_{t<T} t rho^t = rho (1 - rho^T) / (1 - rho)^2 - T rho^T / (1 - rho)              (Lemma E.6)

Near rho = 1 the closed forms cancel; there the sums are computed by doubling, S(2T) from S(T), with positive terms
only. For rho > 1 they follow from 1 / rho in reverse, with logarithmic scaling. At rho = 1 they are T, (T^2 - T) / 2.
"""

from __future__ import annotations

import math

NEAR_ONE = 0.1  # closer than this to 1 the closed form loses more than two digits


def log_sums(log_rho: float, T: int) -> tuple[float, float]:
    """(ln S1, ln S2) at rho = exp(log_rho); ln S2 is -inf for T = 1, where only the term t = 0 remains."""
    s1, s2, shift = _sums(log_rho, T)
    return math.log(s1) + shift, math.log(s2) + shift if s2 > 0 else -math.inf


def second_sum_printed(rho: float, T: int) -> float:
    """S2 as equation (15) prints it, with rho - 1 in the second denominator: a wrong sign, never valid."""
    if rho == 1:
        raise ValueError("second_sum_printed: equation (15) has a pole at rho = 1; use log_sums.")
    return rho * (1 - rho**T) / (1 - rho) ** 2 - T * rho**T / (rho - 1)


def _sums(log_rho: float, T: int) -> tuple[float, float, float]:
    """S1 and S2 without their factor exp(shift)."""
    if T < 1:
        raise ValueError(f"log_sums: T must be at least 1, got {T}.")
    s1, s2 = _decaying(-abs(log_rho), T)
    if log_rho > 0:  # t -> T - 1 - t; the difference loses one bit at most, as S2 <= (T - 1) S1 / 2 here
        return s1, (T - 1) * s1 - s2, log_rho * (T - 1)
    return s1, s2, 0.0


def _decaying(log_rho: float, T: int) -> tuple[float, float]:
    """(S1, S2) for rho <= 1."""
    gap = -math.expm1(log_rho)  # 1 - rho
    if gap <= NEAR_ONE:
        return _sum_by_doubling(log_rho, T)
    last = math.exp(log_rho * T)
    s1 = -math.expm1(log_rho * T) / gap
    return s1, max((math.exp(log_rho) * s1 - T * last) / gap, 0.0) if T > 1 else 0.0


def _sum_by_doubling(log_rho: float, T: int) -> tuple[float, float]:
    """S1(2k) = S1(k) (1 + rho^k), S2(2k) = S2(k) + rho^k (S2(k) + k S1(k)), and one more term if T's bit is set."""
    k, s1, s2 = 1, 1.0, 0.0
    for bit in bin(T)[3:]:
        power = math.exp(log_rho * k)
        s1, s2, k = s1 * (1 + power), s2 + power * (s2 + k * s1), 2 * k
        if bit == "1":
            power = math.exp(log_rho * k)
            s1, s2, k = s1 + power, s2 + k * power, k + 1
    return s1, s2
