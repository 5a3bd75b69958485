"""The preprocessing of a run on disk: `preprocess.json` in the run's folder and next to the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from resolvent.data.preparation.learn import observed_values
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.data.task import Task
from resolvent.disk import Damaged, is_sealed, read_json, read_sealed, write_json
from resolvent.models.checkpoint import PREPROCESS
from resolvent.models.settings import from_dict, to_dict

SAMPLES = 10_000  # used to estimate channel means of a set that is already scaled


def save_preprocess(made: Preprocess, folder: Path) -> None:
    write_json(folder / PREPROCESS, to_dict(made), finite=True)


def load_preprocess(folder: Path) -> Preprocess | None:
    """None if there is none."""
    path = folder / PREPROCESS
    if not path.is_file():
        return None
    try:
        if not is_sealed(read_sealed(path)):
            raise Damaged(f"{path} is damaged (it carries no digest)")
        return from_dict(read_json(path), Preprocess)
    except Damaged as wrong:
        raise Damaged(f"{wrong}; copy it again, or train again.") from None


def preprocess_of(task: Task) -> Preprocess:
    """The task's own, or the identity for a set that needs none."""
    if task.preprocess is not None:
        return task.preprocess
    padded = any(split.lengths is not None for split in task.splits().values())
    return Preprocess(
        inputs=task.channels,
        vocabulary=task.vocabulary,
        classes=task.classes,
        class_names=task.class_names,
        bounds=task.bounds,
        length=task.length,
        padded=padded,
        pair=task.pair,
        tokeniser=task.tokeniser,
        **_ranges(task),
    )


def _ranges(task: Task) -> dict[str, Any]:
    c = task.channels
    if c is None:
        return {}
    some = task.train.select(torch.arange(min(len(task.train), SAMPLES)))
    if not len(some):
        return {"width": (1.0,) * c} | dict.fromkeys(("centre", "fill", "low", "high"), (0.0,) * c)
    values = next(observed_values(some)).double()
    low, high = values.amin(0).tolist(), values.amax(0).tolist()
    if task.bounds is not None:
        low, high = [float(task.bounds[0])] * c, [float(task.bounds[1])] * c
    fill = values.mean(0).tolist()
    return {"centre": (0.0,) * c, "width": (1.0,) * c, "fill": tuple(fill), "low": tuple(low), "high": tuple(high)}
