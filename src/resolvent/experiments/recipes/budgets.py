"""The training of a published preset as the budget of a cell."""

from __future__ import annotations

from typing import Any

from resolvent.experiments.cell import Budget
from resolvent.models.presets import TrainConfig


def budget_of(training: TrainConfig, **own: Any) -> Budget:
    """Their training with settings of our own; lengths given in steps would need the size of the data."""
    theirs: dict[str, Any] = {
        "epochs": training.epochs or 1,
        "batch_size": training.batch,
        "warmup": float(training.warmup),
        **{name: getattr(training, name) for name in ("lr", "ssm_lr", "weight_decay", "clip", "groups")},
    }
    return Budget(**theirs | own)
