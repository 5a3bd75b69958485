"""The edge of stability, the imaginary axis or the unit circle, as seen from the poles.

distance  d_i = s - lam_i on the axis, 1 - lam_i / z on the circle, accurate also for poles close to it
phase     half the phase of the Blaschke product of the poles: increases along the edge by pi n in total
nodes     a first grid: dense near poles, sparse elsewhere

A rational G of degree n with these poles obeys Bernstein and Szegő's inequality (for rational functions: Borwein,
Erdélyi and Zhang 1994): where |G| has its maximum M, at w0,

    |G(w)| >= M cos(phase(w) - phase(w0))    if the phases differ by at most pi/2,

and for a matrix G the same holds for its largest singular value (apply it to u* G v). Equality for one pole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from resolvent.analysis.matrices.exact import Array, circle_gap

RATIO = 4.0  # between the distances of successive nodes from a pole
STEP = 0.6  # phase between successive nodes of the first grid, where the candidates are dense enough


@dataclass(frozen=True)
class Axis:
    """s = i w, from -inf to inf; the half w >= 0 when `symmetric`."""

    poles: Array  # (n,) with negative real part
    symmetric: bool

    @property
    def margin(self) -> Array:
        """Distance of each pole from the edge: (n,), positive for stable ones."""
        return -np.real(self.poles)

    @property
    def place(self) -> Array:
        """The point of the edge closest to each pole: (n,)."""
        return np.imag(self.poles)

    @property
    def span(self) -> tuple[float, float]:
        return (0.0 if self.symmetric else -math.inf), math.inf

    def distance(self, w: Array) -> Array:
        """(k, n); infinite at infinity."""
        return _complex(self.margin, w[:, None] - self.place)

    def phase(self, w: Array, d: Array) -> Array:
        return np.arctan2(d.imag, d.real).sum(-1)

    def point(self, w: Array) -> Array:
        """s, or z on the circle."""
        return 1j * w

    def middle(self, a: Array, b: Array) -> Array:
        scale = float(np.abs(self.poles).max(initial=1e-300))
        right = np.where(np.isfinite(a), a, 0.0) + np.maximum(np.abs(np.where(np.isfinite(a), a, 0.0)), scale)
        left = np.where(np.isfinite(b), b, 0.0) - np.maximum(np.abs(np.where(np.isfinite(b), b, 0.0)), scale)
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(b), right, np.where(np.isinf(a), left, a + (b - a) / 2))


@dataclass(frozen=True)
class Circle:
    """z = exp(i w), w from -pi to pi; the half w >= 0 when `symmetric`."""

    poles: Array
    symmetric: bool

    @property
    def margin(self) -> Array:
        return circle_gap(self.poles)

    @property
    def place(self) -> Array:
        return np.angle(self.poles)

    @property
    def span(self) -> tuple[float, float]:
        return (0.0 if self.symmetric else -math.pi), math.pi

    def distance(self, w: Array) -> Array:
        gap, radius = self.margin, np.abs(self.poles)
        half = (w[:, None] - self.place) / 2  # (k, n)
        sine = np.sin(half)
        return _complex(gap + 2 * radius * sine * sine, 2 * radius * sine * np.cos(half))

    def phase(self, w: Array, d: Array) -> Array:
        return np.arctan2(d.imag, d.real).sum(-1) + d.shape[-1] / 2 * w

    def point(self, w: Array) -> Array:
        return np.exp(1j * w)

    def middle(self, a: Array, b: Array) -> Array:
        return a + (b - a) / 2


def nodes(edge: Axis | Circle, step: float = STEP) -> Array:
    """The first grid, ends included: geometric around each pole, thinned to steps of about `step` in phase."""
    low, high = edge.span
    near = [low, high, 0.0]
    reach = 2 * math.pi if isinstance(edge, Circle) else 4 * float(np.abs(edge.poles).max())
    for place, margin in zip(edge.place, edge.margin, strict=True):
        count = max(1, math.ceil(math.log(max(reach / margin, 1.0), RATIO)))
        steps = margin * RATIO ** np.arange(count + 1)
        near += [place, *(place + steps), *(place - steps)]
    w = np.unique(np.asarray(near, dtype=float))
    w = w[(w >= low) & (w <= high)]
    return w[_thin(phases(edge, w), step)]


def phases(edge: Axis | Circle, w: Array) -> Array:
    """phase(w), computed in pieces that fit into the cache."""
    size = max(1, 500_000 // max(1, edge.poles.size))
    parts = [w[i : i + size] for i in range(0, len(w), size)]
    return np.concatenate([edge.phase(part, edge.distance(part)) for part in parts])


def instability(poles: Array, discrete: bool) -> tuple[str, float]:
    """Why the system is not stable ("" if it is), and the frequency of its worst pole."""
    if not poles.size:
        return "", 0.0
    margin = circle_gap(poles) if discrete else -np.real(poles)
    worst = int(np.argmin(margin))
    if margin[worst] > 0:
        return "", 0.0
    edge = "on" if margin[worst] == 0 else "beyond"
    where = "the unit circle" if discrete else "the imaginary axis"
    frequency = float(np.angle(poles[worst]) if discrete else np.imag(poles[worst]))
    return f"not stable: a pole {edge} {where}", frequency


def _complex(real: Array, imag: Array) -> Array:
    """real + i imag without the NaN from i * infinity."""
    z = np.empty(np.broadcast_shapes(real.shape, imag.shape), complex)
    z.real, z.imag = real, imag
    return z


def _thin(phase: Array, step: float) -> Array:
    """Indices of nodes at least half of `step` apart in phase, with both ends."""
    kept, last = [0], phase[0]
    for i in range(1, len(phase) - 1):
        if phase[i] - last >= step / 2:
            kept.append(i)
            last = phase[i]
    return np.asarray([*kept, len(phase) - 1])
