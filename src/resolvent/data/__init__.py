"""Tasks as values: splits, length, channels or vocabulary, classes, bounds, licence and source.

    task = load_task("digits")             # embedded in the package: no download
    task = load_task("cifar10", augment=True)
    task = from_file("mine.csv")           # your own data, with a seeded split
    task = from_arrays(x, y)
    print(task.describe())

Data sets are stored in the folder named by the environment variable RESOLVENT_DATA, by default ~/.cache/resolvent.
"""

from resolvent.data.augment import CropFlip
from resolvent.data.folder import data_folder
from resolvent.data.load import load_task, task_names, task_summaries
from resolvent.data.loader import Loader, Samples
from resolvent.data.readers.arrays import from_arrays
from resolvent.data.readers.dataset import from_dataset
from resolvent.data.readers.file import from_file
from resolvent.data.task import Split, Task

__all__ = [
    "CropFlip", "Loader", "Samples", "Split", "Task", "data_folder", "from_arrays", "from_dataset", "from_file",
    "load_task", "task_names", "task_summaries",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
