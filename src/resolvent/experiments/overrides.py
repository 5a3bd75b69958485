"""User overrides for a recipe's cells: precision, measurements, samples per pass.

None of it is part of what a table defines, so it is set on the command line; all of it is part of the cell, so that
records contain it and a folder has runs of one kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from resolvent.experiments.cell import Cell
from resolvent.experiments.study import Job


def override(
    job: Job,
    precision: Literal["float32", "bf16"] | None = None,
    evaluate_every: int | None = None,
    attack_batch: int | None = None,
) -> Job:
    """The same cell with these, or its own where they are None; a study trains nothing and stays as it is.

    precision       of training; measurements and attacks are in float32 always
    evaluate_every  epochs between measurements
    attack_batch    samples passed through the model at once in an attack: large for a large GPU
    """
    if not isinstance(job, Cell):
        return job
    wished = {"precision": precision, "evaluate_every": evaluate_every}
    own: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
    plans = job.attacks
    if attack_batch is not None:
        plans = tuple(replace(plan, batch_size=attack_batch) for plan in plans)
    return replace(job, budget=replace(job.budget, **own), attacks=plans)
