"""How a recipe's cells are computed where the user wishes otherwise: precision, measurements, samples of a pass.

None of it is part of what a table defines, so it is chosen on the command line; all of it is part of the cell, so that
the record tells it and a folder holds runs of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from resolvent.experiments.cell import Cell
from resolvent.experiments.study import Job
from resolvent.usage.numbers import check_count


@dataclass(frozen=True)
class Overrides:
    """None leaves the cell's own.

    precision       of training; measurements and attacks are in float32 always
    evaluate_every  epochs between measurements
    attack_batch    samples that pass through the model at once in an attack: a large GPU wants many
    """

    precision: Literal["float32", "bf16"] | None = None
    evaluate_every: int | None = None
    attack_batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "attack_batch"):
            if getattr(self, name) is not None:
                check_count("run", 1, **{name: getattr(self, name)})

    def of(self, job: Job) -> Job:
        """The same cell with these; a study trains nothing and stays as it is."""
        if not isinstance(job, Cell):
            return job
        wished = {"precision": self.precision, "evaluate_every": self.evaluate_every}
        own: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
        plans = job.attacks
        if self.attack_batch is not None:
            plans = tuple(replace(plan, batch_size=self.attack_batch) for plan in plans)
        return replace(job, budget=replace(job.budget, **own), attacks=plans)
