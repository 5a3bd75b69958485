"""Tasks as values: splits, length, channels or vocabulary, classes, bounds, licence and source.

    task = load_task("digits")             # embedded in the package: no download
    task = from_arrays(x, y)               # one's own data, with a seeded split
"""

from resolvent.data.arrays import from_arrays
from resolvent.data.load import load_task, task_names
from resolvent.data.task import Split, Task

__all__ = ["Split", "Task", "from_arrays", "load_task", "task_names"]
