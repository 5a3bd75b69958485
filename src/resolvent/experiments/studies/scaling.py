"""How generalisation bounds grow with the length of a sequence: Table 1 of Honarpisheh et al. 2025, and the bound.

The table compares orders; `over_length` computes the capacity of Theorem 3.3 with all constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from resolvent.analysis import (
    SelectiveNorms,
    attention_capacity,
    generalisation_bound,
    scaling_curves,
    scaling_rows,
    selective_capacity,
)
from resolvent.experiments.studies.findings import Findings, chart, findings, series

UNIT_STEP = math.log(math.e - 1)  # the p with softplus(p) = 1


def table_one(lengths: Sequence[int] = (10, 20, 50, 100, 200, 500, 1000), log_rho: float = 0.01) -> Findings:
    """Dependence on T, d and B_u of nine bounds, and their growth with T at ln rho_A = log_rho."""
    rows = [[r["model"], r["condition"], r["T"], r["d"] or "", r["B_u"] or "", r["note"]] for r in scaling_rows()]
    curves = [
        series(c["name"], c["T"], [v / math.log(10) for v in c["log_growth"]]) for c in scaling_curves(lengths, log_rho)
    ]
    drawn = chart(
        "Growth of generalisation bounds with the length",
        curves,
        ("length T", f"log₁₀ of the growth since T = {lengths[0]}"),
        log="x",
        caption=f"ln ρ_A = {log_rho:g} for the selective SSM with s_A ≥ 0. Orders only: constants are left out.",
    )
    text = (
        "A selective SSM with s_A < 0 has a bound that does not grow with T; with s_A ≥ 0 it grows like T ρ_A^T, and "
        "linear attention's like T."
    )
    return findings(text, ("model", "condition", "in T", "in d", "in B_u", "note"), rows, [drawn])


def over_length(
    lengths: Sequence[int] = (10, 20, 50, 100, 200, 500, 1000), m: int = 25_000, B_q: float = 0.1
) -> Findings:
    """ln C of Theorem 3.3 for s_A = -0.1, 0 and 0.1, and of linear attention, at unit norms; bounds for m samples."""
    cases = [("s_A = -0.1", -0.1), ("s_A = 0", 0.0), ("s_A = 0.1", 0.1), ("linear attention", None)]
    rows, curves = [], []
    for name, s_A in cases:
        logs = []
        for T in lengths:
            norms = unit_norms(T, 0.0 if s_A is None else s_A, B_q)
            found = attention_capacity(norms) if s_A is None else selective_capacity(norms)
            bound = generalisation_bound(norms, m, attention=s_A is None)
            logs.append(found.log_value / math.log(10))
            rows.append([name, T, logs[-1], bound.value, bound.vacuous])
        curves.append(series(name, lengths, logs))
    drawn = chart(
        "Capacity of Theorem 3.3 and of linear attention",
        curves,
        ("length T", "log₁₀ C"),
        log="x",
        caption=f"All norms 1, B_q = {B_q:g}, step 1 at rest, N = 4, d = 16.",
    )
    text = (
        f"Between T = {lengths[0]} and {lengths[-1]}, C grows by 10^{_rise(curves[0]):.2f} for s_A = -0.1, by "
        f"10^{_rise(curves[1]):.2f} for s_A = 0 and by 10^{_rise(curves[2]):.1f} for s_A = 0.1."
    )
    return findings(text, ("model", "T", "log₁₀ C", f"bound, m = {m}", "vacuous"), rows, [drawn])


def unit_norms(T: int, s_A: float, B_q: float) -> SelectiveNorms:
    """Norms of 1, except those that determine the step and the decay."""
    return SelectiveNorms(B_u=1.0, B_w=1.0, B_B=1.0, B_C=1.0, B_A=1.0, B_q=B_q, p=UNIT_STEP, s_A=s_A, N=4, d=16, T=T)


def _rise(curve: dict[str, list[float]]) -> float:
    return curve["y"][-1] - curve["y"][0]
