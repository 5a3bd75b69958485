"""A running cell: the data its stages need."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from resolvent.data import Task
from resolvent.experiments.cell import Cell
from resolvent.experiments.how import How
from resolvent.experiments.store.folder import Folder, RunError, Tell
from resolvent.models import Model, TwoTower, load_model


@dataclass(frozen=True)
class Work:
    cell: Cell
    folder: Folder
    task: Task
    device: torch.device
    tell: Tell
    how: How = field(default_factory=How)

    def trained(self, kept: str = "best") -> Model | TwoTower:
        """The model of a checkpoint, in evaluation mode."""
        place = self.folder.path / "checkpoint" / kept
        if not place.is_dir():
            raise RunError(f"run: there is no checkpoint {kept!r} in {str(self.folder.path)!r}.")
        return load_model(place).to(self.device).eval()
