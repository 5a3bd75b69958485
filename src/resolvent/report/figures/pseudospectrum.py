"""Pseudospectra as level lines: where the resolvent's norm is 10^k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from resolvent.report.figures.figure import INK, MUTED, SERIES, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = 8  # at most


def pseudospectrum_figure(held: dict[str, Any]) -> Figure:
    """Lines of equal distance to singularity (powers of ten), eigenvalues as points, the imaginary axis."""
    figure, axes = blank((3.9, 3.2))
    at = levels(held["height"])
    colours = [SERIES[k % len(SERIES)] for k in range(len(at))]
    lines = axes.contour(held["re"], held["im"], held["height"], levels=at, linewidths=0.9, colors=colours)
    axes.clabel(lines, fmt=lambda v: f"$10^{{{v:g}}}$", fontsize=6.5, colors=INK)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.plot(held["eigenvalues"]["re"], held["eigenvalues"]["im"], "o", ms=2.2, mew=0, color=INK)
    axes.set(xlabel="Re z", ylabel="Im z", xlim=(held["re"][0], held["re"][-1]), ylim=(held["im"][0], held["im"][-1]))
    return figure


def levels(height: list[list[float]]) -> list[float]:
    """Powers of ten between nearly the lowest and the highest value: whole ones, halves where they span little."""
    values = sorted(v for row in height for v in row)
    low, high = values[len(values) // 200], values[-1]
    step = 0.5 if high - low < LINES / 2 else float(max(1, math.ceil((high - low) / LINES)))
    top = math.floor(high / step)
    found = [k * step for k in range(math.ceil(low / step), top + 1)]
    return found if len(found) > 1 else [(top - 1) * step, top * step]
