"""The data of a cell."""

from __future__ import annotations

from resolvent.data import Task, load_task
from resolvent.experiments.cell import TaskChoice


def open_task(choice: TaskChoice) -> Task:
    """Load it, from its name or the user's file, and keep as many samples as are asked for."""
    if choice.file is not None:
        from resolvent.data import from_file

        task: Task = from_file(choice.file, **choice.keywords())
    else:
        task = load_task(choice.name, **choice.keywords())
    return task if choice.samples is None else task.head(choice.samples)
