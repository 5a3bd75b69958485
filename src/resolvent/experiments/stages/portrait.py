"""Charts of an initialisation: spectrum, pseudospectrum, responses against LegS, kernels, conditioning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis import eigenvector_condition, impulse_response, pseudospectrum
from resolvent.experiments.studies.conditioning import before_and_after
from resolvent.experiments.studies.findings import chart, series
from resolvent.experiments.studies.starts import Start, start
from resolvent.experiments.studies.transfer import gap
from resolvent.ssm import Dense, System
from resolvent.ssm.response_grid import EigenResponse, refined_grid, response_distance, response_peak

LARGEST = 256  # states of a pseudospectrum: a quarter of a minute
MOST = 8192  # most states
EXTENDED = 128  # states up to which kappa of LegS is computed in extended precision
CURVES = 4  # kernels; half as many with those of LegS alongside
SPIKE = 3.0  # times the response of LegS
SHOWN, NAMED = 5, 2  # spikes marked, and labelled with their frequency
TITLES = {
    "legs": "HiPPO-LegS",
    "s4d-legs": "S4D-LegS",
    "s4d-lin": "S4D-Lin",
    "s4d-inv": "S4D-Inv",
    "s4d-real": "S4D-Real",
    "ptd": "LegS, perturbed then diagonalised",
}
NOTES = {
    "legs": "The exact operator: A is triangular with the eigenvalues −1 … −N, and far from normal.",
    "s4d-legs": "The normal part of LegS with half of B: close to LegS at each fixed frequency, with spikes near N²/π.",
    "s4d-lin": "Evenly spaced frequencies, in coordinates of its own: read-outs do not compare with those of LegS.",
    "s4d-inv": "Near the frequencies of LegS, in coordinates of its own: read-outs do not compare with those of LegS.",
    "s4d-real": "Real decays, in coordinates of its own: read-outs do not compare with those of LegS.",
    "ptd": "LegS + E for a small E whose eigenvectors are well conditioned: the response of LegS without the spikes.",
}


def portrait(name: str, n: int, *, contours: bool = True) -> dict[str, Any]:
    """Facts, a spectrum, a pseudospectrum (unless left out) and charts of the start `name` with n states."""
    if n > MOST:
        raise ValueError(f"analyse: expected at most {MOST:,} states, whose matrices take gigabytes; got n = {n:,}.")
    made = start(name, n)
    if contours and n > LARGEST:
        raise ValueError(
            f"pseudospectra are drawn up to {LARGEST} states, which takes a quarter of a minute and grows with n^3; "
            f"got n = {n}: leave them out with --no-contours."
        )
    legs = start("legs", n)
    charts = [*responses(made, legs), kernels(made, legs), condition_chart(n)]
    return {
        "kind": "start",
        "title": f"{TITLES[name]}, {n} states",
        "lead": NOTES[name],
        "facts": facts(made, legs),
        "spectra": [spectrum(made)],
        "pseudospectrum": contour(made) if contours else None,
        "charts": charts,
    }


def facts(made: Start, legs: Start) -> dict[str, float | None]:
    """Numbers by name; None if unknown."""
    peak = response_peak(made.response)
    found: dict[str, float | None] = {
        "states": made.n,
        "log10 of the eigenvectors' condition number": log10_kappa(made),
        "largest real part": float(made.lam.real.max()),
        "largest frequency of an eigenvalue": float(made.lam.imag.abs().max()),
        "norm of A": float(torch.linalg.matrix_norm(made.A, 2)),
        "largest gain of a read-out of unit norm": peak.value,
        "its frequency": peak.frequency,
    }
    if made.of_legs and made.name != "legs":
        far = response_distance(made.response, legs.response)
        found |= {"largest distance from LegS": far.value, "at frequency": far.frequency}
    return found


def log10_kappa(made: Start) -> float | None:
    """0 for a normal A; for LegS in extended precision; None if that would take minutes."""
    if made.name == "legs":
        return eigenvector_condition(made.A).log10 if made.n <= EXTENDED else None
    V = made.response.V if isinstance(made.response, EigenResponse) else torch.eye(made.n)
    return round(max(0.0, math.log10(float(torch.linalg.cond(V)))), 12)


def spectrum(made: Start) -> dict[str, Any]:
    re, im = made.lam.real.tolist(), made.lam.imag.tolist()
    caption = f"{made.n} eigenvalues; frequencies up to {max(map(abs, im)):.5g}."
    return {"name": "Eigenvalues", "caption": caption, "plane": "continuous", "re": re, "im": im,
            "group": [0] * made.n, "groups": []}  # fmt: skip


def contour(made: Start) -> dict[str, Any]:
    """log10 of the distance to singularity over the plane, to three places."""
    found = pseudospectrum(made.A, points=100 if made.n <= 64 else 60)
    height = torch.log10(found.sigma.clamp_min(1e-300)).tolist()
    return {
        "re": found.re.tolist(),
        "im": found.im.tolist(),
        "height": [[round(v, 3) for v in row] for row in height],
        "eigenvalues": {"re": made.lam.real.tolist(), "im": made.lam.imag.tolist()},
    }


def responses(made: Start, legs: Start, points: int = 300) -> list[dict[str, Any]]:
    """|G| of the first state, and of the worst read-out, against LegS; then their distance."""
    w = refined_grid(made.lam, points)[1:]
    frame, norm, reference = ("frequency", "gain"), made.state_norm(w), legs.state_norm(w)
    both = [series(made.name, w, norm), *_reference(made, w, reference)]
    title = "Gain of the worst read-out of unit norm"
    charts = [chart(title, both, frame, log="xy", marks=_spikes(made, w, norm, reference))]
    if not made.of_legs:
        return charts
    own, exact = made.gain(made.read(0), w).abs(), legs.gain(legs.read(0), w).abs()
    both = [series(made.name, w, own), *_reference(made, w, exact)]
    charts.insert(0, chart("Gain read out at the first state", both, frame, log="xy",
                           marks=_spikes(made, w, own, exact)))  # fmt: skip
    if made.name != "legs":
        apart = [series(f"state {k + 1}", w, gap(made, legs, w, k)) for k in (0, made.n - 1)]
        apart.append(series("worst", w, gap(made, legs, w)))
        charts.append(chart("Distance from the response of LegS", apart, ("frequency", "|G − G of LegS|"), log="xy"))
    return charts


def _reference(made: Start, w: Tensor, values: Tensor) -> list[dict[str, Any]]:
    return [] if made.name == "legs" else [series("LegS", w, values, "dash")]


def _spikes(made: Start, w: Tensor, own: Tensor, exact: Tensor) -> list[tuple[float, float, str]]:
    """Peaks that are well above LegS, the largest few, with their frequency; only in the same coordinates."""
    if not made.of_legs or made.name == "legs":
        return []
    peak = torch.zeros_like(own, dtype=torch.bool)
    peak[1:-1] = (own[1:-1] >= own[:-2]) & (own[1:-1] >= own[2:])
    found = (peak & (own > SPIKE * exact)).nonzero()[:, 0]
    order = (own / exact)[found].argsort(descending=True)[:SHOWN]
    places = found[order].tolist()
    return [(float(w[i]), float(own[i]), f"{float(w[i]):.4g}" if k < NAMED else "") for k, i in enumerate(places)]


def kernels(made: Start, legs: Start) -> dict[str, Any]:
    """C exp(t A) B of the first states, with those of LegS dashed."""
    t = torch.logspace(-2, 1, 600, dtype=torch.float64)
    beside = made.of_legs and made.name != "legs"
    count = min(CURVES // 2 if beside else CURVES, made.n // 2 if made.A.is_complex() else made.n)
    curves = [series(f"state {k + 1}", t, kernel(made, k, t)) for k in range(count)]
    if beside:
        curves += [series("LegS" if k == 0 else "_LegS", t, kernel(legs, k, t), "dash") for k in range(count)]
    return chart("Impulse responses of the first states", curves, ("time", "C exp(tA) B"), log="x")


def kernel(made: Start, k: int, t: Tensor) -> Tensor:
    C = made.read(k)[None]
    if isinstance(made.response, EigenResponse):
        V, lam, b = made.response.V, made.response.lam, made.response.b[:, 0]
        return ((C.to(V.dtype) @ V)[0] * b * torch.exp(t[:, None] * lam)).sum(-1).real
    system = System(Dense(made.A), made.B[:, None], C, torch.zeros(1, 1, dtype=torch.float64))
    return impulse_response(system, t)[0, 0]


def condition_chart(n: int) -> dict[str, Any]:
    """kappa over N up to this size, at least 16 and at most 64."""
    sizes = tuple(k for k in (2, 4, 8, 16, 32, 64) if k <= max(n, 16))
    found: dict[str, Any] = before_and_after(sizes)["charts"][0]
    return found
