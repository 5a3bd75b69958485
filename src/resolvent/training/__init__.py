"""Training against an attacker or without one: objectives, the loop, runs that survive a kill."""

from resolvent.training.collapse import spread
from resolvent.training.diverged import Diverged
from resolvent.training.fit import Paused, fit
from resolvent.training.history import History
from resolvent.training.measure import measure
from resolvent.training.noisy import noisy, toned
from resolvent.training.objective import Loss, Objective, standard
from resolvent.training.optimiser import parameter_groups
from resolvent.training.settings import Budget, FitSettings, Probe
from resolvent.training.step.adversarial import PGDAT, TRADES, Inner, pgd_at, trades
from resolvent.training.step.awp import AWP, awp
from resolvent.training.step.batch import Batch, criterion
from resolvent.training.weighted import balanced_weights, weighted

__all__ = [
    "AWP", "PGDAT", "TRADES", "Batch", "Budget", "Diverged", "FitSettings", "History", "Inner", "Loss", "Objective",
    "Paused", "Probe", "awp", "balanced_weights", "criterion", "fit", "measure", "noisy", "parameter_groups", "pgd_at",
    "spread", "standard", "toned", "trades", "weighted",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
