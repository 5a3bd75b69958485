"""Theorem 4.1: no bound on the Rademacher complexity of selective SSMs can grow slower than this if s_A >= 0.

One channel with one state, A = ln(1 + s_A), W_B = W_C = 1, q = 0 and dt = 1, fed with ones, returns
z[T] = w ((1 + s_A)^T - 1) / s_A, so over |w| <= B_w

    Rad = B_w ((1 + s_A)^T - 1) / s_A  E|sigma_1 + ... + sigma_m| / m.                                     (19), (20)

The step is 1 at p = ln(e - 1); the paper's p = e would give softplus(e) = 2.78. The paper also uses
sqrt(2 / (pi m)) for the mean, its limit for large m, which is too large for every even m.
"""

from __future__ import annotations

import math

from resolvent.usage.numbers import check_count, check_not_negative


def mean_sign(m: int) -> float:
    """E|sigma_1 + ... + sigma_m| / m for fair signs: binom(m - 1, floor(m / 2)) / 2^(m - 1)."""
    check_count("rademacher_lower", 1, m=m)
    if m <= 1000:
        return math.comb(m - 1, m // 2) / 2 ** (m - 1)
    k = m // 2
    return math.exp(math.lgamma(m) - math.lgamma(k + 1) - math.lgamma(m - k) - (m - 1) * math.log(2))


def sum_powers(s_A: float, T: int) -> float:
    """((1 + s_A)^T - 1) / s_A, which is T at 0; infinite on overflow."""
    if not 0 <= s_A < math.inf:
        raise ValueError(f"rademacher_lower: Theorem 4.1 needs a spectral abscissa s_A >= 0, got {s_A}.")
    check_count("rademacher_lower", 1, T=T)
    if s_A == 0:
        return float(T)
    exponent = T * math.log1p(s_A)
    return math.expm1(exponent) / s_A if exponent < 700 else math.inf


def rademacher_lower(B_w: float, s_A: float, T: int, m: int) -> float:
    """The Rademacher complexity of the subclass above, exactly: a lower bound for every class that contains it.

    Examples:
        >>> rv.analysis.rademacher_lower(B_w=1.0, s_A=0.0, T=10, m=100) > 0
        True
    """
    check_not_negative("rademacher_lower", B_w=B_w)
    return B_w * sum_powers(s_A, T) * mean_sign(m)
