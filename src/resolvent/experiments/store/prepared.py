"""A run's preprocessing, stored in its folder: data that changed since are detected before training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from resolvent.data import Task
from resolvent.data.preparation.keep import load_preprocess, preprocess_of, save_preprocess
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.disk import first_difference
from resolvent.experiments.cell import Cell
from resolvent.experiments.store.folder import RunError
from resolvent.experiments.store.source import keep_source
from resolvent.experiments.work import Work
from resolvent.models.settings import to_dict
from resolvent.training.process_group import current_group


def keep_preprocess(work: Work) -> None:
    """Write it once; a resumed run must have the same data."""
    folder = work.folder.path
    if current_group().first:
        held = _read_kept(folder)
        if held is None and (folder / "checkpoint").exists():
            refuse_older(work.cell, folder)
        if held is None:
            save_preprocess(preprocess_of(work.task), folder)
        else:
            require_same(held, work.task, folder)
        keep_source(work.cell, folder)
    current_group().wait()


def require_same(held: Preprocess, task: Task, folder: Path) -> None:
    """Compare the saved preprocessing with that of the present data."""
    found = first_difference(to_dict(held), to_dict(preprocess_of(task)), same=_equal)
    if found is not None:
        name, then, now = found
        raise RunError(
            f"run: the data of {str(folder)!r} have changed since it was trained: {name} was {str(then)[:60]} and is "
            f"{str(now)[:60]} now; bring the file back, name the new one with --data, or train in another folder."
        )


def refuse_older(cell: Cell, folder: Path) -> None:
    """Refuse runs older than saved preprocessing, which filled gaps by a rule that no longer exists."""
    rule = cell.task.keywords().get("missing", "refuse")
    if rule != "refuse":
        raise RunError(
            f"run: {str(folder)!r} was trained by an older version, which filled missing values ({rule!r}) before it "
            "scaled them and kept no preprocess.json; the preprocessing cannot be restored: train the model again."
        )


def _read_kept(folder: Path) -> Preprocess | None:
    """None also if damaged: it is remade from the data."""
    try:
        return load_preprocess(folder)
    except ValueError:
        return None


def _equal(a: Any, b: Any) -> bool:
    """Up to the rounding of a mean, whose last digits depend on the number of threads."""
    numbers = isinstance(a, float) and isinstance(b, float)
    return bool(a == b or (numbers and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)))
