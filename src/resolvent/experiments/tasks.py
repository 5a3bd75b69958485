"""The data of a cell."""

from __future__ import annotations

from resolvent.data import Task, load_task
from resolvent.data.load import task_options
from resolvent.data.tasks.official import counts
from resolvent.experiments.cell import TaskChoice


def open_task(choice: TaskChoice) -> Task:
    """Load it, by name or from the user's file, with the requested number of samples."""
    if choice.file is not None:
        from resolvent.data import from_file

        task: Task = from_file(choice.file, **choice.keywords())
    else:
        task = load_task(choice.name, **choice.keywords())
    return task if choice.samples is None else task.head(choice.samples)


def glimpse(choice: TaskChoice, rows: int) -> tuple[Task, int, int]:
    """Samples for measuring a step, and the numbers of training and test samples.

    Of a generated set only `rows` are made, since all of it can take an hour.
    """
    options = task_options(choice.name) | choice.keywords()
    if choice.file is not None or "samples" not in options or options.get("official"):
        task = open_task(choice)
        return task, len(task.train), len(task.test)
    most = choice.samples
    train, _, test = (n if most is None else min(n, most) for n in counts(choice.name, options["samples"]))
    few = load_task(choice.name, **choice.keywords() | {"samples": (min(rows, train), 1, 1)})
    return few, train, test
