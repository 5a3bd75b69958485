"""The effects of the perturbation's size: ||E|| / ||A|| from 0.01 to 0.5."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from resolvent.experiments.studies.findings import Findings, chart, findings, series
from resolvent.init import closed_form, random_perturbation
from resolvent.init.ptd_result import PTD
from resolvent.init.spectra import legs_ptd, share_of
from resolvent.ssm.hippo import dplr

STRENGTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def size_sweep(n: int = 32, strengths: Sequence[float] = STRENGTHS, seeds: int = 3) -> Findings:
    """kappa, D, the largest real part and the gain at S4D's spike, for E = t P P^T and for random E of each size."""
    spike = float(dplr("legs", n)[0].imag.max())
    rows = []
    for strength in strengths:
        made = closed_form("legs", n, share=share_of(n, strength))
        rows.append(["t P Pᵀ", strength, made.kappa, made.distance, made.max_real, spike_gain(made, spike)])
        tries = [random_perturbation("legs", n, size=strength, seed=seed) for seed in range(seeds)]
        medians = [statistics.median(values) for values in zip(*(_facts(each, spike) for each in tries), strict=True)]
        rows.append([f"random, median of {seeds}", strength, *medians])
    shipped = legs_ptd(n)
    rows.append(["shipped", shipped.relative_size, *_facts(shipped, spike)])
    best = (shipped.relative_size, shipped.kappa, shipped.distance or math.nan)
    charts = [
        _chart("κ(V)", rows, 2, n, (best[0], best[1], "shipped")),
        _chart("D = sup ‖H − H of LegS‖", rows, 3, n, (best[0], best[2], "shipped")),
        _chart("gain at S4D's spike, first state", rows, 5, n, (best[0], float(rows[-1][5]), "shipped")),  # type: ignore[arg-type]
    ]
    text = (
        f"N = {n}. κ falls as E grows, and D grows. Of {len(strengths)} sizes {_stable(rows, 't')} leave a stable "
        f"system with E = t P Pᵀ, and {_stable(rows, 'random')} with a random E. The shipped E has size {best[0]:.3f}, "
        f"κ = {best[1]:.2f} and D = {best[2]:.3f}."
    )
    names = ("E", "‖E‖ / ‖A‖", "κ(V)", "D", "largest Re λ", "gain at the spike")
    return findings(text, names, rows, charts)


def spike_gain(made: PTD, frequency: float) -> float:
    """|G(i w)| for the read-out of the first state."""
    assert made.B is not None
    b = made.V_inv @ made.B[:, 0].to(made.V.dtype)
    return float((made.V[0] * b / (1j * frequency - made.lam)).sum().abs())


def _facts(made: PTD, spike: float) -> tuple[float, float, float, float]:
    return made.kappa, made.distance if made.distance is not None else math.nan, made.max_real, spike_gain(made, spike)


def _chart(
    what: str, rows: list[list[object]], column: int, n: int, mark: tuple[float, float, str]
) -> dict[str, object]:
    curves = []
    for kind in ("t P Pᵀ", "random"):
        own = [row for row in rows if str(row[0]).startswith(kind)]
        curves.append(series(f"E = {kind}" if kind != "random" else "random E", [row[1] for row in own],
                             [row[column] for row in own]))  # fmt: skip
    return chart(f"{what}, N = {n}", curves, ("‖E‖ / ‖A‖", what), log="xy", marks=[mark])


def _stable(rows: list[list[object]], kind: str) -> int:
    return sum(str(row[0]).startswith(kind) and float(str(row[4])) < 0 for row in rows)
