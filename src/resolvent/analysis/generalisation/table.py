"""How generalisation bounds of sequence models scale with length, width and data: Table 1 of Honarpisheh et al. 2025.

Each row is data: the printed dependence as text, and the one on T as a number, for a table and for a plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from resolvent.usage.numbers import check_count

Growth = Literal["constant", "linear", "exponential", "log"]


@dataclass(frozen=True)
class Scaling:
    """One row: the bound of `model` under `condition` grows like in_T in_d in_B_u; None if the table has none."""

    model: str
    condition: str
    in_T: str
    in_d: str | None
    in_B_u: str | None
    growth: Growth
    note: str = ""

    def log_at(self, T: int, log_rho: float) -> float:
        """ln of the dependence on T; the exponential row needs ln rho_A >= 0."""
        if self.growth == "exponential":
            if log_rho < 0:
                raise ValueError(f"scaling_curves: the row for s_A >= 0 needs rho_A >= 1, got ln rho_A = {log_rho}.")
            return math.log(T) + T * log_rho
        if self.growth == "linear":
            return math.log(T)
        return 1.5 * math.log(math.log(T)) if self.growth == "log" else 0.0


TABLE = (
    Scaling("selective SSM", "s_A < 0", "1", "d^(1/2)", "B_u^4", "constant"),
    Scaling(
        "selective SSM", "s_A >= 0", "T rho_A^T", "d^(1/2)", "B_u^4", "exponential",
        "at rho_A = 1 the sum S2 is (T^2 - T) / 2, so the bound grows with T^2",
    ),
    Scaling("linear attention", "", "T", "1", "B_u^3", "linear"),
    Scaling("softmax attention", "", "1", "1", "B_u^3", "constant"),
    Scaling("vanilla RNN", "l_x ||A||_2 < 1", "1", "d", "B_u", "constant"),
    Scaling("vanilla RNN", "l_x ||A||_2 = 1", "T", "d", "B_u", "linear"),
    Scaling("vanilla RNN", "l_x ||A||_2 > 1", "T", "d^(3/2)", "B_u", "linear", "its activation is bounded"),
    Scaling(
        "discrete LTI SSM", "max |lam| < 1", "1", None, None, "constant", "inputs of bounded energy sum ||u[k]||^2",
    ),
    Scaling("continuous LTI SSM", "s_A < 0", "ln^(3/2) T", None, None, "log", "inputs that are Hoelder continuous"),
)  # fmt: skip


def scaling_rows() -> list[dict[str, Any]]:
    """Table 1 as plain data, one dict for each row.

    Examples:
        >>> len(rv.analysis.scaling_rows()) > 0
        True
    """
    return [
        {"model": r.model, "condition": r.condition, "T": r.in_T, "d": r.in_d, "B_u": r.in_B_u, "note": r.note}
        for r in TABLE
    ]


def scaling_curves(lengths: Sequence[int], log_rho: float = 0.0) -> list[dict[str, Any]]:
    """Growth of each row against T, relative to the first length, as natural logarithms, for plots.

    Lengths start at 2, because ln^(3/2) T vanishes at 1.

    Examples:
        >>> len(rv.analysis.scaling_curves([10, 100])) > 0
        True
    """
    for T in lengths:
        check_count("scaling_curves", 2, **{"each length": T})
    curves = []
    for row in TABLE:
        logs = [row.log_at(T, log_rho) for T in lengths]
        name = f"{row.model}, {row.condition}" if row.condition else row.model
        curves.append({"name": name, "T": list(lengths), "log_growth": [v - logs[0] for v in logs]})
    return curves
