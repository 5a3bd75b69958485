"""A study as one frozen value beside the cells of other recipes: an analysis that trains nothing, by its function.

    record = run_study(Study("ptd-transfer", ("n=32",), "transfer.over_frequency", (("n", 32),)), "runs/one")

Its record has the findings under "study"; a complete one is read, not repeated.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from resolvent.experiments import studies
from resolvent.experiments.cell import Cell, check_tags
from resolvent.experiments.entry import entered
from resolvent.experiments.folder import RECORD, Folder
from resolvent.experiments.provenance import provenance
from resolvent.experiments.work import Told
from resolvent.models.settings import Settings, nearest, to_dict
from resolvent.training.crew import crew

FORMAT = 1
Setting = int | float | str | bool | tuple[int, ...] | tuple[float, ...]
log = logging.getLogger("resolvent.experiments")


@dataclass(frozen=True)
class Study(Settings):
    """`function` is a function below `experiments.studies`; `settings` are its keyword arguments."""

    recipe: str
    tags: tuple[str, ...]
    function: str
    settings: tuple[tuple[str, Setting], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags("Study", self.recipe, *self.tags)
        known = inspect.signature(self.find()).parameters
        for name, _ in self.settings:
            if name not in known:
                raise ValueError(f"Study: {self.function} takes {', '.join(known)}; {nearest(name, known)}")

    @property
    def address(self) -> str:
        return ",".join(self.tags)

    @property
    def place(self) -> str:
        """Where it is kept below the folder of results."""
        return f"{self.recipe}/{'-'.join(self.tags) or 'study'}/seed-{self.seed}"

    def seeded(self, seed: int) -> Study:
        """The same: nothing in a study is left to chance but what its settings say."""
        return replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = to_dict(self)
        return made

    def find(self) -> Callable[..., dict[str, Any]]:
        """The function itself: only those of the package of studies are looked at."""
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


def run_study(study: Study, path: str | Path, *, told: Told = log.info) -> dict[str, Any]:
    """Run it unless its record is there. Of several processes that torchrun started the first does the work."""
    folder, team = Folder(path), crew()
    with entered(folder, study, team):
        if team.first and folder.record() is None:
            told(f"{study.address}: {study.function}")
            folder.write(RECORD, _record(study))
        team.wait()
        return folder.record() or {}


def _record(study: Study) -> dict[str, Any]:
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed)
        found = study.find()(**dict(study.settings))
    told = {"format": FORMAT, "cell": study.to_dict(), "versions": provenance(torch.device("cpu")), "study": found}
    return told | {"times": {"study": round(time.perf_counter() - started, 3)}}
