"""Generalisation bounds of selective SSMs and linear attention: Theorem 3.3, Proposition 3.4 (Honarpisheh et al. 2025).

With probability 1 - delta over m samples, for a loss that is l-Lipschitz and bounded by c,

    |expected - empirical loss| <= 2 Rad + 3 c sqrt(ln(2 / delta) / (2 m))                                 (Theorem E.2)
    Rad <= 12 l C / sqrt(m) (1 + ln(c sqrt(m) / (3 l C)))                                                  (Lemma D.4)

where C^2 / eps^2 bounds the logarithm of the covering number. C is the sum over the parameters' covers (73)-(78) of
alpha^(1/3) beta^(2/3), to the power 3/2 (Lemma C.9), with all constants. The paper's printed forms are given separately
under their own names: (14) drops logarithms and lower terms, (13) loses a factor 2 and the l inside the logarithm.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from resolvent.analysis.generalisation.norms import SelectiveNorms, check_data_bound
from resolvent.analysis.generalisation.sums import log_sums, second_sum_printed
from resolvent.usage.numbers import check_count, check_fraction, check_positive


@dataclass(frozen=True)
class Capacity:
    """ln C: `log_terms` holds ln(alpha^(1/3) beta^(2/3)) of each parameter's cover.

    `log_short` is (14) or (17), the short form without logarithms and lower terms, with the corrected rho and S2.
    """

    log_value: float
    log_short: float
    log_terms: dict[str, float]

    @property
    def value(self) -> float:
        """C, or infinity on overflow."""
        return _exp(self.log_value)

    @property
    def short(self) -> float:
        return _exp(self.log_short)


@dataclass(frozen=True)
class GeneralisationBound:
    """`value` bounds the gap; it is `vacuous` if it is at least c, which no gap exceeds. `printed` is (13).

    Examples:
        >>> W, q = torch.randn(4, 2), torch.randn(2)
        >>> norms = rv.analysis.selective_norms(W, W, -torch.ones(2, 4), 0.0, q, q, 1.0, T=10)
        >>> rv.analysis.generalisation_bound(norms, m=100).vacuous
        True
    """

    value: float
    printed: float | None  # None if (13) has no finite value
    rademacher: float  # of the loss composed with the class, bounded from above
    capacity: Capacity
    norms: SelectiveNorms
    m: int
    delta: float
    lipschitz: float
    ceiling: float

    @property
    def vacuous(self) -> bool:
        return self.value >= self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON; capacities as natural logarithms, because they may overflow."""
        norms = self.norms
        log_s1, log_s2 = log_sums(norms.log_rho, norms.T)
        return {
            "bound": self.value, "bound_printed": self.printed, "vacuous": self.vacuous, "rademacher": self.rademacher,
            "log_capacity": _json(self.capacity.log_value), "log_capacity_short": _json(self.capacity.log_short),
            "log_terms": {name: _json(v) for name, v in self.capacity.log_terms.items()},
            "log_rho": norms.log_rho, "log_rho_printed": norms.log_rho_printed, "M_delta": norms.widest_step,
            "log_S1": _json(log_s1), "log_S2": _json(log_s2),
            "m": self.m, "delta": self.delta, "l": self.lipschitz, "c": self.ceiling, "norms": asdict(norms),
        }  # fmt: skip


def selective_capacity(norms: SelectiveNorms) -> Capacity:
    """C of Theorem 3.3 from (79) with the logarithms of (73)-(78); also (14).

    Examples:
        >>> W, q = torch.randn(4, 2), torch.randn(2)
        >>> norms = rv.analysis.selective_norms(W, W, -torch.ones(2, 4), 0.0, q, q, 1.0, T=10)
        >>> rv.analysis.selective_capacity(norms).value > 0
        True
    """
    log_s1, log_s2 = log_sums(norms.log_rho, norms.T)
    step, n_d, (B_u, B_w, B_B, B_C) = norms.widest_step, norms.N * norms.d, _log_bounds(norms)
    M_B, M_C, M_w, M_q, M_A = (_log(norms.one_norm(k)) for k in ("B", "C", "w", "q", "A"))
    log_step, out = _log(step), B_w + B_B + B_C + 3 * B_u
    drift = out + _add(log_s1, log_step + _log(norms.B_A) + log_s2)  # of eps_p + eps_q in (70)
    vector = _log(math.log(2 * norms.d + 1))
    pairs = {
        "W_B": (2 * (B_u + M_B) + _log(math.log(2 * n_d + 1)), B_w + B_C + 2 * B_u + log_step + log_s1),
        "W_C": (2 * (B_B + 2 * B_u + log_step + M_C + log_s1) + _log(math.log(2 * n_d * norms.d + 1)), B_w + B_u),
        "A": (_log(2 * n_d * math.log(2 * n_d)) + 2 * M_A, 2 * log_step + out + log_s2),
        "w": (2 * (B_B + B_C + 3 * B_u + log_step + M_w + log_s1) + vector, 0.0),
        "q": (2 * (B_u + M_q) + vector, drift),
        "p": (_log(2 / math.e) + 2 * _log(abs(norms.p)), drift),  # (78): ln z <= z^2 / (2 e) with z = 2 |p| / eps
    }
    wide = _add(2 / 3 * log_step + _log(n_d) / 3, 2 / 3 * (_log(norms.B_q) + B_u))
    return _capacity(pairs, log_step + out + _log(norms.B_A) + log_s2 + 1.5 * wide)


def attention_capacity(norms: SelectiveNorms) -> Capacity:
    """C of Proposition 3.4: A = 0 and dt = 1, so (86) with its logarithms; also (17). A, p and q are not used.

    Examples:
        >>> W, q = torch.randn(4, 2), torch.randn(2)
        >>> norms = rv.analysis.selective_norms(W, W, -torch.ones(2, 4), 0.0, q, q, 1.0, T=10)
        >>> rv.analysis.attention_capacity(norms).value > 0
        True
    """
    log_T, n_d, (B_u, B_w, B_B, B_C) = math.log(norms.T), norms.N * norms.d, _log_bounds(norms)
    M_B, M_C, M_w = (_log(norms.one_norm(k)) for k in ("B", "C", "w"))
    pairs = {
        "W_B": (2 * (B_u + M_B) + _log(math.log(2 * n_d + 1)), log_T + B_w + B_C + 2 * B_u),
        "W_C": (2 * (log_T + B_B + 2 * B_u + M_C) + _log(math.log(2 * n_d * norms.d + 1)), B_w + B_u),
        "w": (2 * (log_T + B_B + B_C + 3 * B_u + M_w) + _log(math.log(2 * norms.d + 1)), 0.0),
    }
    return _capacity(pairs, log_T + B_w + B_B + B_C + 3 * B_u)


def _log_bounds(norms: SelectiveNorms) -> tuple[float, ...]:
    """ln of B_u, B_w, B_B and B_C."""
    return tuple(_log(v) for v in (norms.B_u, norms.B_w, norms.B_B, norms.B_C))


def generalisation_bound(
    norms: SelectiveNorms,
    m: int,
    delta: float = 0.05,
    *,
    lipschitz: float = 1.0,
    ceiling: float = 1.0,
    attention: bool = False,
    u: Tensor | None = None,
) -> GeneralisationBound:
    """The bound of Theorem 3.3, or of Proposition 3.4 with `attention`, for m samples at confidence 1 - delta.

    lipschitz, ceiling   of the loss: |l(z) - l(z')| <= lipschitz |z - z'| and 0 <= l <= ceiling. The cross-entropy
                         is unbounded: state the value at which it is clipped.
    u                    the samples (m, l, d), checked against the stated B_u

    Examples:
        >>> W, q = torch.randn(4, 2), torch.randn(2)
        >>> norms = rv.analysis.selective_norms(W, W, -torch.ones(2, 4), 0.0, q, q, 1.0, T=10)
        >>> rv.analysis.generalisation_bound(norms, m=1000).value > 0
        True
    """
    _check(norms, m, delta, lipschitz, ceiling)
    if u is not None:
        check_data_bound(u, norms.B_u)
    capacity = attention_capacity(norms) if attention else selective_capacity(norms)
    tail = 3 * ceiling * math.sqrt(math.log(2 / delta) / (2 * m))
    rademacher = dudley(capacity.log_value + math.log(lipschitz), m, ceiling)
    return GeneralisationBound(
        2 * rademacher + tail, _evaluate_printed(norms, m, lipschitz, ceiling, tail, attention), rademacher, capacity,
        norms, m, delta, lipschitz, ceiling,
    )  # fmt: skip


def dudley(log_capacity: float, m: int, ceiling: float) -> float:
    """Lemma D.4 with ln(l C): the infimum over alpha of 4 alpha + 12 l C / sqrt(m) ln(c / alpha).

    The infimum is at alpha = 3 l C / sqrt(m); if that exceeds c the integral is empty and 4 c remains.
    """
    if log_capacity == -math.inf:
        return 0.0
    log_alpha = math.log(3) + log_capacity - math.log(m) / 2
    room = math.log(ceiling) - log_alpha
    return 4 * math.exp(log_alpha) * (1 + room) if room > 0 else 4 * ceiling


def printed_capacity(norms: SelectiveNorms) -> float | None:
    """(14) with (15) exactly as printed: rho for one sign and S2 with its wrong sign; None if undefined."""
    try:
        s2 = second_sum_printed(math.exp(norms.log_rho_printed), norms.T)
    except (ValueError, OverflowError):
        return None
    step = norms.widest_step_printed
    wide = step ** (2 / 3) * (norms.N * norms.d) ** (1 / 3) + (norms.B_q * norms.B_u) ** (2 / 3)
    value = step * norms.B_w * norms.B_u**3 * norms.B_B * norms.B_C * norms.B_A * s2 * wide**1.5
    return value if math.isfinite(value) else None


def _evaluate_printed(norms: SelectiveNorms, m: int, l: float, c: float, tail: float, attention: bool) -> float | None:
    """(13): neither the factor 2 of Theorem E.2 nor the l inside the logarithm."""
    C = attention_capacity(norms).short if attention else printed_capacity(norms)
    if C is None or not 0 < C < math.inf:
        return None
    return 12 * l * C / math.sqrt(m) * (1 + math.log(c * math.sqrt(m) / (3 * C))) + tail


def _capacity(pairs: dict[str, tuple[float, float]], log_short: float) -> Capacity:
    """Lemma C.9: C^2 = (sum of alpha^(1/3) beta^(2/3))^3, from ln alpha and ln beta."""
    terms = {name: (alpha + 2 * beta) / 3 for name, (alpha, beta) in pairs.items()}
    top = max(terms.values())
    total = top + math.log(math.fsum(math.exp(t - top) for t in terms.values())) if top > -math.inf else -math.inf
    return Capacity(1.5 * total, log_short, terms)


def _check(norms: SelectiveNorms, m: int, delta: float, lipschitz: float, ceiling: float) -> None:
    where = "generalisation_bound"
    check_count(where, 1, m=m)
    if m < norms.N * norms.d:
        raise ValueError(
            f"{where}: the covers (Lemma D.3) need m >= N d = {norms.N * norms.d} samples, got m = {m}: no bound holds."
        )
    check_fraction(where, delta=delta)
    check_positive(where, **{"lipschitz of the loss": lipschitz, "ceiling of the loss": ceiling})


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _add(a: float, b: float) -> float:
    """ln(e^a + e^b)."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
