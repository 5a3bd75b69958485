"""Training against an attacker or without one: objectives, the loop, runs that survive a kill.

history = fit(model, load_task("digits"), trades(Threat("linf", 0.1, (0, 1))), FitSettings(epochs=30), "runs/one")
"""

from resolvent.training.batch import Batch
from resolvent.training.collapse import spread
from resolvent.training.criterion import criterion
from resolvent.training.diverged import Diverged
from resolvent.training.fit import fit
from resolvent.training.history import History
from resolvent.training.inner import Inner
from resolvent.training.measure import measure
from resolvent.training.noisy import noisy
from resolvent.training.objective import PGDAT, TRADES, Loss, Objective, pgd_at, standard, trades
from resolvent.training.optimiser import parameter_groups
from resolvent.training.settings import FitSettings, Probe

__all__ = [
    "PGDAT",
    "TRADES",
    "Batch",
    "Diverged",
    "FitSettings",
    "History",
    "Inner",
    "Loss",
    "Objective",
    "Probe",
    "criterion",
    "fit",
    "measure",
    "noisy",
    "parameter_groups",
    "pgd_at",
    "spread",
    "standard",
    "trades",
]
