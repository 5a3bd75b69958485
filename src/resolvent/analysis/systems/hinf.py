"""H-infinity norm: the largest gain over all frequencies, with guaranteed bounds.

    ||G|| = sup_w sigma_max(G(i w)), or G(exp(i w)) for a discrete system, w in radians per step

phase        the poles limit how narrow a peak can be (`boundary`); a branch-and-bound search along the edge of
             stability (`peak`) then brackets the norm. Cost: one Schur form for a dense A, none for a diagonal one.
hamiltonian  the level sets of Boyd and Balakrishnan (1990) and Bruinsma and Steinbuch (1990): `hamiltonian`. Slower,
             for small systems: a check of the other.

A diagonal system's bracket holds with the rounding of every sum included, its poles' angles taken as they round in
float64. For other forms it holds up to an error of rounding size in A (`balance`), added to both sides at the peak.
"""

from __future__ import annotations

import math

import numpy as np

from resolvent.analysis import checks
from resolvent.analysis.matrices.boundary import instability, nodes
from resolvent.analysis.matrices.peak import Peak, search
from resolvent.analysis.systems.hamiltonian import level_set
from resolvent.analysis.systems.norm import HinfNorm, fill_bank, join_reasons
from resolvent.analysis.systems.realisation import Realisation, realisations
from resolvent.analysis.systems.transfer import Transfer, transfer
from resolvent.ssm import System
from resolvent.usage.numbers import check_choice

METHODS = ("phase", "hamiltonian")
FEWEST = 1e-10  # narrowest allowed bracket: below it rounding dominates


def hinf_norm(system: System, rtol: float = 1e-6, method: str = "phase") -> HinfNorm:
    """The largest gain over all frequencies (H-infinity norm) of each system, between `lower` and `upper` within rtol.

    An unstable system has norm infinity and a `reason`; this is not an error. States that no chain of non-zero entries
    connects to an input and an output are not part of G and are ignored, stable or not.

    Examples:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> norm = rv.analysis.hinf_norm(rv.System(0.5 * one, one, one, 0 * one, dt=1.0))
        >>> round(float(norm.value), 4), float(norm.frequency)
        (2.0, 0.0)
    """
    checks.check_system("hinf_norm", system)
    checks.check_real_number("hinf_norm", "rtol", rtol, least=FEWEST * 0.999, most=0.5)
    check_choice("hinf_norm", "method", method, METHODS)
    found = [_one(one, rtol, method) for one in realisations(system)]
    bank = system.bank
    values, lowers, uppers, places, reasons = zip(*found, strict=True)
    value, lower, upper, place = (fill_bank(column, bank) for column in (values, lowers, uppers, places))
    return HinfNorm(value, lower, upper, place, method, join_reasons(reasons, bank))


def _one(one: Realisation, rtol: float, method: str) -> tuple[float, float, float, float, str]:
    """value, lower, upper, frequency and reason of a single system."""
    if not one.states:
        size = float(np.linalg.norm(one.D, 2))
        return size, size, size, 0.0, ""
    reason, frequency = instability(one.poles(), one.discrete)
    if reason:
        return math.inf, math.inf, math.inf, frequency, reason
    if method == "hamiltonian":
        return level_set(one, rtol)
    G = transfer(one)
    peak = search(G.sample, G.edge.middle, nodes(G.edge), rtol, budget=20_000 + 3_000 * one.states)
    value, frequency = _polish(G, peak, rtol)
    noise = G.backward(frequency)
    lower, upper = max(peak.lower, value) - noise, peak.upper + noise
    reason = "" if upper <= lower * (1 + 2 * rtol) else _wide(peak)
    return value, max(lower, 0.0), upper, frequency, reason


def _polish(G: Transfer, peak: Peak, rtol: float) -> tuple[float, float]:
    """Refine the maximum near the peak found: successively finer grids."""
    value, place = peak.lower, peak.node
    if not math.isfinite(place):
        return value, place
    low, high = G.edge.span
    d = G.edge.distance(np.asarray([place]))[0]
    slope = float((d.real / np.abs(d) ** 2).sum())  # of the phase, along the axis; on the circle close enough
    width = 4 * math.sqrt(rtol) / slope
    for _ in range(8):
        w = np.clip(place + width * np.linspace(-1, 1, 17), low, high)
        seen = G.sample(w, value)
        top = int(np.argmax(seen.low))
        if seen.low[top] > value:
            value, place = float(seen.low[top]), float(w[top])
        width /= 6
    return value, place


def _wide(peak: Peak) -> str:
    if not peak.complete:
        return "the gain is nearly flat: the search ended before the bracket was as narrow as asked for"
    return "rounding leaves the bracket wider than asked for"
