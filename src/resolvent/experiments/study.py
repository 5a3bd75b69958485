"""A study as one frozen value, listed in recipes like a cell: an analysis without training, given by its function.

    record = run_study(Study("ptd-transfer", ("n=32",), "transfer.over_frequency", (("n", 32),)), "runs/one")

Its record has the findings under "study"; a complete study is read, not repeated.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from resolvent.experiments import studies
from resolvent.experiments.cell import Addressed, Cell, check_tags
from resolvent.experiments.provenance import provenance
from resolvent.experiments.store.entry import enter_folder
from resolvent.experiments.store.folder import RECORD, Folder, Tell
from resolvent.training.process_group import current_group
from resolvent.usage.numbers import check_choice

FORMAT = 1
Setting = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
log = logging.getLogger("resolvent.experiments")


@dataclass(frozen=True)
class Study(Addressed):
    """`function` is a function below `experiments.studies`; `settings` are its keyword arguments.

    Examples:
        >>> rv.experiments.Study("mine", ("n=8",), "transfer.over_frequency", (("n", 8),)).place
        'mine/n=8/seed-0'
    """

    recipe: str
    tags: tuple[str, ...]
    function: str
    settings: tuple[tuple[str, Setting], ...] = ()
    seed: int = 0
    untagged: ClassVar[str] = "study"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags("Study", self.recipe, *self.tags)
        known = inspect.signature(self.find()).parameters
        for name, _ in self.settings:
            check_choice("Study", f"a setting of {self.function}", name, known)

    def find(self) -> Callable[..., dict[str, Any]]:
        """The function, looked up only in the package of studies."""
        module, _, name = self.function.rpartition(".")
        if not module.isidentifier() or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"Study: expected a function such as 'transfer.over_frequency', got {self.function!r}.")
        try:
            home = importlib.import_module(f"{studies.__name__}.{module}")
            found: Callable[..., dict[str, Any]] = getattr(home, name)
        except (ImportError, AttributeError):
            raise ValueError(f"Study: there is no study {self.function!r}.") from None
        return found


Job = Cell | Study


def run_study(study: Study, path: str | Path, *, tell: Tell = log.info) -> dict[str, Any]:
    """Run it unless its record exists. With torchrun only the first process does the work.

    Examples:
        >>> study = rv.experiments.Study("mine", ("n=8",), "transfer.over_frequency", (("n", 8),))
        >>> "text" in rv.experiments.run_study(study, "runs/study")["study"]
        True
    """
    folder, group = Folder(path), current_group()
    with enter_folder(folder, study, group):
        if group.first and folder.sound_record(tell) is None:
            tell(f"{study.address}: {study.function}")
            folder.write(RECORD, _record(study))
        group.wait()
        return folder.record() or {}


def _record(study: Study) -> dict[str, Any]:
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed)
        found = study.find()(**dict(study.settings))
    record = {"format": FORMAT, "cell": study.to_dict(), "versions": provenance(torch.device("cpu")), "study": found}
    return record | {"times": {"study": round(time.perf_counter() - started, 3)}}
