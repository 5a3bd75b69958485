"""Runs that survive: a cell is a run's settings, a recipe is a list of cells, a folder holds what was found.

    record = run_cell(cell, "runs/one")
"""

from resolvent.experiments.cell import AttackPlan, Budget, Cell, CertifyPlan, TaskChoice
from resolvent.experiments.folder import Folder, RunError
from resolvent.experiments.goal import Goal
from resolvent.experiments.lock import Lock, Taken
from resolvent.experiments.run import run_cell

__all__ = [
    "AttackPlan",
    "Budget",
    "Cell",
    "CertifyPlan",
    "Folder",
    "Goal",
    "Lock",
    "RunError",
    "Taken",
    "TaskChoice",
    "run_cell",
]
