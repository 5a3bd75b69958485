"""Resumable experiments: a cell is one run's settings, a recipe is a list of cells, a folder holds the results.

record = run_cell(cell, "runs/one")
records = run("ptd-conditioning", "runs", size="small")
"""

from resolvent.experiments.cell import AttackPlan, Budget, Cell, CertifyPlan, FourierPlan, TaskChoice
from resolvent.experiments.objective_settings import Goal
from resolvent.experiments.recipe import run
from resolvent.experiments.store.folder import Folder, RunError
from resolvent.experiments.store.lock import Lock, Taken
from resolvent.experiments.study import Study, run_study
from resolvent.experiments.training_run import run_cell

__all__ = [
    "AttackPlan", "Budget", "Cell", "CertifyPlan", "Folder", "FourierPlan", "Goal", "Lock", "RunError", "Study",
    "Taken", "TaskChoice", "run", "run_cell", "run_study",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
