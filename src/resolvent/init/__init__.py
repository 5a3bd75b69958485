"""Initialisation: spectra of state matrices, perturb-then-diagonalise, rings of eigenvalues, time steps."""

from resolvent.init import ring, spectra, timestep
from resolvent.init.ptd_method import closed_form, diagonalise, ptd, random_perturbation
from resolvent.init.ptd_objective import CodeObjective, PaperObjective, SteadyObjective
from resolvent.init.ptd_result import PTD
from resolvent.init.ptd_search import Search
from resolvent.init.reservoir import reservoir

__all__ = [
    "PTD", "CodeObjective", "PaperObjective", "Search", "SteadyObjective", "closed_form", "diagonalise", "ptd",
    "random_perturbation", "reservoir", "ring", "spectra", "timestep",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
