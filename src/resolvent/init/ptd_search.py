"""The search of perturb-then-diagonalise: L-BFGS in rounds, with a refined frequency grid before each.

A round holds the grid fixed, so that the objective is one smooth function; between rounds the grid follows the
eigenvalues. Converged means that a whole round, on a fresh grid, lowered the objective by less than the tolerance, and
that the fresh grid found nothing that the old one had missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.init.ptd_frame import Frame, RealFrame, frame_of
from resolvent.init.ptd_objective import Objective, Terms
from resolvent.init.ptd_start import perturbations
from resolvent.ssm.response_grid import SchurResponse, dense_response, refined_grid, response_peak


@dataclass(frozen=True)
class Search:
    """The length and starting points of a search.

    rounds     most refinements of the frequency grid; 0 returns the best starting candidate, a closed form
    steps      descent steps of a round
    tolerance  converged when a round lowers the objective by less than this share of it
    pairs      for a real matrix: search only spectra of conjugate pairs (and one real eigenvalue if n is
               odd), as needed by layers that keep one of each pair; always so for HiPPO matrices given by name
    seed       of the random starting candidates

    Examples:
        >>> rv.init.Search(rounds=2, steps=10).steps
        10
    """

    rounds: int = 20
    steps: int = 300
    tolerance: float = 1e-3
    pairs: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.steps < 1 or not 0 < self.tolerance < 1:
            raise ValueError(
                f"Search: expected rounds >= 0, steps >= 1 and 0 < tolerance < 1, got rounds={self.rounds}, "
                f"steps={self.steps}, tolerance={self.tolerance}."
            )


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    lam: Tensor
    V: Tensor
    value: float
    rounds: int
    settled: bool
    change: float  # relative fall of the objective in the last round


class Problem:
    """One matrix, one objective, one starting frame."""

    def __init__(self, A: Tensor, B: Tensor | None, objective: Objective) -> None:
        self.A, self.objective = A, objective
        self.size = float(torch.linalg.matrix_norm(A))
        self.abscissa = float(torch.linalg.eigvals(A).real.max())
        self.B = B if objective.uses_response else None
        self.reference: SchurResponse | None = None
        self.grid, self.H, self.peak = torch.empty(0), torch.empty(0), 1.0
        self.lost = 0  # points where the objective could not be computed
        if self.B is not None:
            self.reference = dense_response(A, self.B)
            self.peak = response_peak(self.reference, 200, both_signs=A.is_complex()).value or 1.0
        if self.peak == float("inf"):  # a pole on the imaginary axis: there is no finite response to preserve
            self.B = self.reference = None

    def refine(self, frame: Frame, x: Tensor) -> None:
        """Move the grid to the eigenvalues at x."""
        if self.reference is not None:
            poles = frame.factors(x).lam
            self.grid = refined_grid(poles, both_signs=self.A.is_complex())
            self.H = self.reference.at(self.grid)

    def value(self, frame: Frame, x: Tensor) -> Tensor:
        at = frame.factors(x)
        inverse = torch.linalg.inv(at.basis)
        singular = torch.linalg.svdvals(at.basis)
        gaps = None
        if self.B is not None:
            H = frame.response(at, inverse @ self.B.to(inverse.dtype)).at(self.grid)
            gaps = (H - self.H).abs().square().sum((0, 2)) / self.peak**2
        E = at.product @ inverse - self.A
        return self.objective.value(Terms(singular[0] / singular[-1], E, at.lam, gaps, self.size, self.abscissa))

    def refined_value(self, frame: Frame, x: Tensor) -> float:
        """The objective on a fresh grid, infinite where it cannot be computed."""
        with torch.no_grad():
            try:
                self.refine(frame, x)
                value = float(self.value(frame, x))
            except RuntimeError:  # singular eigenvectors: a defective candidate
                return float("inf")
        return value if value == value else float("inf")


def search(A: Tensor, B: Tensor | None, objective: Objective, how: Search) -> Found:
    """From the best starting candidate, descend until a round brings no improvement."""
    problem = Problem(A, B, objective)
    frame, value = _best_start(problem, how)
    x, change, settled, done = frame.start(), float("inf"), how.rounds == 0 and value < float("inf"), 0
    while done < how.rounds and not settled and value < float("inf"):
        problem.lost = 0
        x, after = _descend(problem, frame, x, how.steps)
        fresh = problem.refined_value(frame, x)
        change = abs(value - fresh) / max(abs(fresh), 1e-300)
        missed = fresh - after > how.tolerance * abs(fresh)  # the fresh grid finds what the old one missed
        settled = change < how.tolerance and not missed and not problem.lost
        value, done = fresh, done + 1
    lam, V = frame.spectrum(frame.factors(x))
    return Found(lam, V, value, done, settled, change)


def _best_start(problem: Problem, how: Search) -> tuple[Frame, float]:
    frames = [frame_of(problem.A + E) for E in perturbations(problem.A, how.seed)]
    if how.pairs:
        frames = [f for f in frames if isinstance(f, RealFrame) and 2 * f.pairs + 1 >= len(f.X)] or frames
    values = [problem.refined_value(f, f.start()) for f in frames]
    value = min(values)
    best = frames[values.index(value)]
    problem.refine(best, best.start())
    return best, value


def _descend(problem: Problem, frame: Frame, x: Tensor, steps: int) -> tuple[Tensor, float]:
    """One round of L-BFGS on the present grid."""
    from scipy.optimize import minimize

    def at(flat: object) -> tuple[float, object]:
        z = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        try:
            value = problem.value(frame, z)
            (slope,) = torch.autograd.grad(value, z)
        except RuntimeError:  # a step so long that the eigenvectors became dependent; the line search backtracks
            problem.lost += 1
            return float("inf"), torch.zeros_like(z).detach().numpy()
        return value.item(), slope.numpy()

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 40, "ftol": 1e-12, "gtol": 1e-9}
    found = minimize(at, x.numpy(), jac=True, method="L-BFGS-B", options=options)
    end = torch.from_numpy(found.x)
    if not bool(torch.isfinite(end).all()):  # the last point that could be computed is kept
        problem.lost += 1
        return x, problem.refined_value(frame, x)
    return end, float(found.fun)
