"""The conditioning of eigenvectors: of LegS, and after a perturbation.

LegS has kappa(V) ~ 5.83^N: its float64 eigenvectors have no correct digit from N = 24 on, so kappa comes from extended
precision. A perturbation of a few per cent reduces it to a value that does not grow with N.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from resolvent.analysis import eigenvector_condition
from resolvent.experiments.studies.findings import Findings, chart, findings, series
from resolvent.init import random_perturbation
from resolvent.init.ptd_method import closed_form
from resolvent.init.spectra import legs_ptd, share_of
from resolvent.ssm.hippo import hippo

Sizes = Sequence[int]
SHOWN = 6.0  # log10 of the largest kappa of LegS shown with perturbed matrices


def legs_log10(n: int) -> float:
    """log10 kappa(V) of LegS in extended precision."""
    return eigenvector_condition(hippo("legs", n)[0]).log10


def before_and_after(sizes: Sizes = (2, 4, 8, 16, 32, 64)) -> Findings:
    """kappa(V) of LegS, of LegS + E as shipped, and of its normal part (S4D), over N."""
    rows, before, after = [], [], []
    for n in sizes:
        found = legs_ptd(n)
        before.append(legs_log10(n))
        after.append(math.log10(found.kappa))
        rows.append([n, f"{10 ** (before[-1] % 1):.3f}e{math.floor(before[-1])}", found.kappa, found.relative_size,
                     found.backward_error, found.max_real])  # fmt: skip
    drawn = chart(
        "Conditioning before and after the perturbation",
        [
            series("LegS", sizes, before),
            series("LegS + E (PTD)", sizes, after),
            series("normal part (S4D)", sizes, [0.0] * len(sizes), "dash"),
        ],
        ("states N", "log₁₀ κ(V)"),
        caption="κ of LegS grows 5.83-fold with each state; that of PTD stays where it is.",
    )
    text = (
        f"At N = {sizes[-1]} the eigenvectors of LegS have κ = 10^{before[-1]:.1f}; after a perturbation of "
        f"{100 * rows[-1][3]:.1f} % they have κ = {rows[-1][2]:.2f}."  # type: ignore[operator]
    )
    names = ("N", "κ of LegS", "κ of PTD", "‖E‖ / ‖A‖", "backward error", "largest Re λ")
    return findings(text, names, rows, [drawn])


def over_sizes(
    sizes: Sizes = (4, 8, 16, 32, 64), strengths: Sequence[float] = (0.001, 0.01, 0.1), seeds: int = 5
) -> Findings:
    """kappa(V) over N and the relative size of E: random perturbations (median of the seeds) and the closed form."""
    exact = [log10 for n in sizes if (log10 := legs_log10(n)) < SHOWN]
    rows, drawn = [], [series("LegS itself", sizes[: len(exact)], [10**log10 for log10 in exact], "dash")]
    for strength in strengths:
        random, closed = [], []
        for n in sizes:
            kappas = [random_kappa(n, strength, seed) for seed in range(seeds)]
            random.append(statistics.median(kappas))
            closed.append(closed_form(hippo("legs", n)[0], share=share_of(n, strength)).kappa)
            rows.append([n, strength, random[-1], min(kappas), max(kappas), closed[-1]])
        drawn.append(series(f"random E, {strength:g}", sizes, random))
        drawn.append(series(f"E = t P Pᵀ, {strength:g}", sizes, closed, "points"))
    figure = chart(
        "κ(V) over the number of states and the size of E",
        drawn,
        ("states N", "κ(V)"),
        log="xy",
        caption="Sizes are ‖E‖ / ‖A‖. A random E lowers κ as 1 / size; one along P Pᵀ lowers it more, for any N.",
    )
    top = max(rows, key=lambda row: (row[0], row[1]))
    text = (
        f"At N = {top[0]} and a size of {top[1]:g}, κ = {top[2]:.3g} for a random E (median of {seeds}) and "
        f"{top[5]:.3g} for the closed form."
    )
    names = ("N", "‖E‖ / ‖A‖", "κ, random (median)", "least", "largest", "κ, closed form")
    return findings(text, names, rows, [figure])


def random_kappa(n: int, strength: float, seed: int) -> float:
    """kappa of LegS plus a Gaussian E of that relative size; infinite if not diagonalisable."""
    A = hippo("legs", n)[0]
    try:
        return random_perturbation(A, size=strength, seed=seed).kappa
    except ValueError:  # the perturbed matrix cannot be diagonalised in float64
        return math.inf
