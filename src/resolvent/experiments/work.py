"""A running cell: the data its stages need."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from resolvent.data import Split, Task
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

    def tested(self, samples: int | None) -> tuple[Split, tuple[Tensor, ...]]:
        """The first test samples, this many (None: all), on the device; and as (x, y) or (x, y, lengths)."""
        split = self.task.test
        n = len(split) if samples is None else min(samples, len(split))
        part = split.select(torch.arange(n)).to(self.device)  # unpacks packed samples
        return part, (part.x, part.y) if part.lengths is None else (part.x, part.y, part.lengths)

    def trained(self, kept: str = "best") -> Model | TwoTower:
        """The model of a checkpoint, in evaluation mode."""
        place = self.folder.path / "checkpoint" / kept
        if not place.is_dir():
            raise RunError(f"run: there is no checkpoint {kept!r} in {str(self.folder.path)!r}.")
        return load_model(place).to(self.device).eval()
