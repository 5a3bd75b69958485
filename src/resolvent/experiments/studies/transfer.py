"""The distance of a diagonal initialisation from LegS over frequency, and which grids resolve it.

|G_Pert(i w) - G_DPLR(i w)|              for a read-out C
D(w) = ||H_Pert(w) - H_DPLR(w)||_2       for the worst C of unit norm; H(w) = (i w - A)^-1 B
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.experiments.studies.findings import Findings, chart, findings, series
from resolvent.experiments.studies.starts import Start, start
from resolvent.ssm.response_grid import refined_grid, response_distance

COMPARED = ("s4d-legs", "ptd")


def over_frequency(n: int = 32, points: int = 400) -> Findings:
    """|G - G_LegS| of S4D-LegS and PTD over frequency, read out at the first and the last state, and worst case."""
    legs, others = start("legs", n), [start(name, n) for name in COMPARED]
    w = refined_grid(torch.cat([other.lam for other in others]), points)[1:]
    charts: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for k, label in ((0, "first state"), (n - 1, "last state"), (None, "worst read-out of unit norm")):
        curves = [series(other.name, w, gap(other, legs, w, k)) for other in others]
        own = legs.state_norm(w) if k is None else legs.gain(legs.read(k), w).abs()
        caption = "The spikes of S4D stand at its eigenfrequencies, the largest near N²/π; PTD has none."
        title = f"|G − G of LegS|, {label}, N = {n}"
        drawn = [*curves, series("|G| of LegS", w, own, "dash")]
        charts.append(chart(title, drawn, ("frequency", "difference"), log="xy", caption=caption))
        rows += [[label, other.name, *_largest(gap(other, legs, w, k), w)] for other in others]
    top = {row[1]: row for row in rows if row[0].startswith("worst")}
    text = (
        f"D = {top['s4d-legs'][2]:.4g} at frequency {top['s4d-legs'][3]:.5g} for S4D-LegS and "
        f"{top['ptd'][2]:.3g} at {top['ptd'][3]:.4g} for PTD."
    )
    return findings(text, ("read-out", "start", "largest difference", "at frequency"), rows, charts)


def sensitivity(
    n: int = 32, nodes: Sequence[int] = (30, 100, 300, 1000, 3000, 10000), thresholds: Sequence[float] = (0.1, 1.0)
) -> Findings:
    """How much of D a uniform frequency grid finds against a refined one; and the bands where D exceeds thresholds."""
    legs = start("legs", n)
    seen, rows = [], []
    for name in COMPARED:
        other = start(name, n)
        exact = response_distance(other.response, legs.response).value
        top = 3 * float(other.lam.abs().max())
        found = [float(gap(other, legs, torch.logspace(-2, 0, k, dtype=torch.float64) * top).max()) for k in nodes]
        seen += [series(name, nodes, found), series(f"{name}, refined", nodes, [exact] * len(nodes), "dash")]
        rows += [[name, threshold, *band] for threshold in thresholds for band in bands(other, legs, threshold)]
    text = _summarise(rows, thresholds)
    figure = chart(
        f"D as grids of frequencies see it, N = {n}",
        seen,
        ("nodes, evenly spread over two decades of log w", "largest difference found"),
        log="xy",
        caption="A spike is one unit wide at a frequency near N²/π: a plain grid misses it.",
    )
    return findings(text, ("start", "threshold", "from", "to", "largest", "at frequency"), rows, [figure])


def bands(other: Start, legs: Start, threshold: float, points: int = 2000) -> list[tuple[float, float, float, float]]:
    """(from, to, largest, at) of each frequency band where D(w) exceeds the threshold, on a refined grid."""
    w = refined_grid(torch.cat([other.lam, legs.lam]), points)
    d = gap(other, legs, w)
    above = torch.nn.functional.pad((d > threshold).long(), (1, 1))
    starts = (above.diff() == 1).nonzero()[:, 0].tolist()
    ends = (above.diff() == -1).nonzero()[:, 0].tolist()
    found = []
    for a, b in zip(starts, ends, strict=True):
        value, at = _largest(d[a:b], w[a:b])
        found.append((float(w[a]), float(w[b - 1]), value, at))
    return found


def gap(other: Start, legs: Start, w: Tensor, k: int | None = None) -> Tensor:
    """|G - G_LegS| (k,) read out at state k, or ||H - H_LegS||_2 for None."""
    H = other.response.at(w)[..., 0] - legs.response.at(w)[..., 0]  # (n, k)
    return torch.linalg.vector_norm(H, dim=0) if k is None else H[k].abs()


def _largest(values: Tensor, w: Tensor) -> tuple[float, float]:
    top = int(values.argmax())
    return float(values[top]), float(w[top])


def _summarise(rows: list[list[Any]], thresholds: Sequence[float]) -> str:
    counts = [
        f"{sum(row[0] == name and row[1] == t for row in rows)} above {t:g} for {name}"
        for name in COMPARED
        for t in thresholds
    ]
    return "Bands of frequencies in which a read-out of unit norm can differ from LegS's: " + ", ".join(counts) + "."
