"""The Kreiss constant: the transient growth predicted by the resolvent outside the stable region.

    K = sup_{Re z > 0} Re z ||(z - A)^-1||          for exp(t A)
    K = sup_{|z| > 1} (|z| - 1) ||(z - A)^-1||      for A^k

K <= sup ||A^k|| <= e n K, likewise for exp(t A) (Kreiss 1962, Spijker 1991).

On each line Re z = x, or circle |z| = r, the largest resolvent norm g is bracketed like an H-infinity norm, with few
nodes where sigma_min, whose slope is at most one, is large. Between two lines Hadamard's theorems bound g: log g is
convex in x (three lines) and in log r (three circles). So both bounds on K are guaranteed, up to rounding: the lower
one is a value at a point, the upper one covers those between the lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from resolvent.analysis import checks
from resolvent.analysis.checks import Matrix
from resolvent.analysis.matrices.boundary import Axis, Circle, instability, nodes, phases
from resolvent.analysis.matrices.exact import Array, scale_of
from resolvent.analysis.matrices.numerical_range import numerical_abscissa, radius
from resolvent.analysis.matrices.peak import Samples, search
from resolvent.analysis.matrices.schur import Schur
from resolvent.analysis.matrices.sigma_min import sigma_min
from resolvent.analysis.valued import Valued

LINES = 240  # most lines or circles evaluated
START = 12  # of these, the initial ones, at halving distances
CLOSE = 0.6  # share of the tolerance within which no line is added
INNER = 0.2  # share of the tolerance for one line
FIRST = 6.0  # phase between the first nodes of a line
NOISE = 1e-8  # relative accuracy of sigma_min
EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class KreissConstant(Valued):
    """lower <= K <= upper; `lower` is reached at `point` (infinity when K = 1 is reached there).

    Examples:
        >>> found = rv.analysis.kreiss_constant(torch.diag(torch.tensor([0.5, 0.9])), discrete=True)
        >>> found.lower <= 1.01
        True
    """

    lower: float
    upper: float
    point: complex
    reason: str = ""

    @property
    def value(self) -> float:
        return self.lower


def kreiss_constant(A: Matrix, discrete: bool, rtol: float = 0.02) -> KreissConstant:
    """K of the matrix A for powers (discrete=True) or exponentials (False), bracketed to the relative width rtol.

    Infinite, with a reason, when a pole is beyond the edge of stability.

    Examples:
        >>> rv.analysis.kreiss_constant(torch.tensor([[0.5, 5.0], [0.0, 0.5]]), discrete=True).lower > 2
        True
    """
    matrix = checks.check_matrix("kreiss_constant", A).numpy()
    checks.check_real_number("kreiss_constant", "rtol", rtol, least=1e-4 * 0.999, most=1.0)
    unit = 1.0 if discrete else scale_of(matrix)  # K is the same in any unit of time
    matrix = matrix / unit
    slack = len(matrix) * EPS * float(np.linalg.norm(matrix))
    if (np.linalg.norm(matrix, 2) - 1 if discrete else numerical_abscissa(matrix)) <= slack:
        return KreissConstant(1.0, 1.0, complex(math.inf))
    reason = instability(np.linalg.eigvals(matrix), discrete)[0]
    if "beyond" in reason:
        return KreissConstant(math.inf, math.inf, complex("nan"), reason)
    size = _find_radius(matrix) - 1 if discrete else numerical_abscissa(matrix)
    if size <= slack:
        return KreissConstant(1.0, 1.0, complex(math.inf))
    levels = _Levels(Schur.of(matrix), discrete, not np.iscomplexobj(matrix))
    lower, upper, point = _polish(levels, *_across(levels, size, rtol))
    point = point * unit if np.isfinite(point) else point
    if upper <= lower * (1 + 2 * rtol):
        return KreissConstant(lower, upper, point)
    return KreissConstant(lower, upper, point, reason or f"{LINES} lines leave the bracket wider than asked for")


def _find_radius(A: Array) -> float:
    """The numerical radius from above, precise where it may be one."""
    rough = radius(A, 0.05)
    return radius(A).upper if rough.lower <= 1 < rough.upper else rough.upper


@dataclass(frozen=True)
class _Levels:
    """g(x), the largest ||(z - A)^-1|| over Re z = x, or over |z| = r at the depth x = r - 1."""

    form: Schur
    discrete: bool
    symmetric: bool

    def peak(self, x: float, rtol: float, floor: float) -> tuple[float, float, complex]:
        """lower and upper bound of g(x) and the point of the lower one; values below `floor` do not matter."""
        edge: Axis | Circle
        if self.discrete:
            edge = Circle(self.form.poles / (1 + x), self.symmetric)
        else:
            edge = Axis(self.form.poles - x, self.symmetric)
        if float(edge.margin.min()) <= 0:
            return 0.0, math.inf, complex(x)

        def place(w: Array) -> Array:
            return (1 + x) * np.exp(1j * w) if self.discrete else x + 1j * np.where(np.isfinite(w), w, 0.0)

        def sample(w: Array, _: float) -> Samples:
            with np.errstate(divide="ignore"):
                g = np.where(np.isfinite(w), 1 / sigma_min(self.form, place(w)), 0.0)
            return Samples(g * (1 - NOISE), g * (1 + NOISE), g * NOISE, phases(edge, w))

        steep = 1 + x if self.discrete else 1.0
        found = search(sample, edge.middle, nodes(edge, FIRST), rtol, 100_000, floor, steep)
        return found.lower, found.upper, complex(place(np.asarray([found.node]))[0])

    def bound(self, x: tuple[float, float], g: tuple[float, float]) -> float:
        """The largest x g(x) between two levels, g log-convex between its bounds."""
        if math.isinf(g[0]) or x[0] == x[1]:
            return math.inf
        u = (math.log1p(x[0]), math.log1p(x[1])) if self.discrete else x
        b = (math.log(g[1]) - math.log(g[0])) / (u[1] - u[0])
        limit = -1.0 if self.discrete else 0.0
        top = -1 / (b - limit) if b < limit else math.inf  # where x g(x) is stationary
        at = min(max(top, x[0]), x[1])
        v = math.log1p(at) if self.discrete else at
        return at * math.exp(math.log(g[0]) + b * (v - u[0]))


def _across(levels: _Levels, size: float, rtol: float) -> tuple[float, float, complex]:
    """Branch and bound over the levels x. Beyond `far` the numerical range alone gives x g(x) <= 1 + rtol."""
    far = max(size * (1 + 1 / rtol), 1e-300)
    xs = [0.0, *(far * 4.0**-k for k in range(START - 1, -1, -1))]
    best = (1.0, complex(math.inf))
    g: dict[float, float] = {}

    def look(x: float) -> None:
        nonlocal best
        low, g[x], z = levels.peak(x, INNER * rtol, best[0] * (1 + INNER * rtol) / x if x else 0.0)
        if x * low > best[0]:
            best = (x * low, z)

    for x in sorted(xs, reverse=True):
        look(x)
    upper, open_ = 1.0 + rtol, list(pairwise(xs))
    while open_:
        rated = [(levels.bound(pair, (g[pair[0]], g[pair[1]])), pair) for pair in open_]
        near = best[0] * (1 + CLOSE * rtol)
        upper = max([upper, *(bound for bound, _ in rated if bound <= near)])
        rated = [(bound, pair) for bound, pair in rated if bound > near]
        if len(g) + len(rated) > LINES:
            return best[0], max([upper, *(bound for bound, _ in rated)]), best[1]
        open_ = []
        for _, (a, b) in rated:
            middle = math.sqrt(a * b) if a else b / 4
            look(middle)
            open_ += [(a, middle), (middle, b)]
    return best[0], max(upper, best[0]), best[1]


def _polish(levels: _Levels, lower: float, upper: float, point: complex) -> tuple[float, float, complex]:
    """The bracket after a local ascent from the best point found."""
    import scipy.optimize

    def depth(z: complex) -> float:
        return abs(z) - 1 if levels.discrete else z.real

    if not np.isfinite(point):
        return lower, upper, point

    def fall(xy: Array) -> float:
        z = complex(*xy)
        return -max(depth(z), 0.0) / max(float(sigma_min(levels.form, np.asarray([z]))[0]), 1e-300)

    corners = np.asarray([[point.real, point.imag]]) + 0.05 * depth(point) * np.asarray([[0, 0], [1, 0], [0, 1]])
    options = {"initial_simplex": corners, "xatol": 1e-9, "fatol": 1e-12, "maxiter": 200}
    done = scipy.optimize.minimize(fall, corners[0], method="Nelder-Mead", options=options)
    lower, point = max((lower, point), (-float(done.fun), complex(*done.x)), key=lambda found: found[0])
    return lower, max(lower, upper), point
