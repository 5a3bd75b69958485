"""The samples for a command: a task's test split, the run's own, or a new file read like the training file.

A run's preprocessing (scale, gaps, channels, classes, bounds) applies to every new file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.data import Task, from_file, load_task, task_names
from resolvent.data.preparation.keep import load_preprocess
from resolvent.data.preparation.like import Raw, read_like
from resolvent.data.preparation.preprocess import Bounds, Missing, Preprocess
from resolvent.data.preparation.windows import Windows, stack, windows_of
from resolvent.data.readers.archive import read_arrays
from resolvent.data.readers.file import ARRAYS, SUFFIXES
from resolvent.data.readers.sequences import as_number
from resolvent.data.readers.values import number_words, tensor_of
from resolvent.disk import Damaged, read_json
from resolvent.experiments.store.folder import CELL, Folder
from resolvent.experiments.store.prepared import refuse_older, require_same
from resolvent.experiments.tasks import open_task
from resolvent.predictor.saved import Kept, preprocess_in
from resolvent.usage.error import UsageError


@dataclass(frozen=True)
class Reading:
    """How to read a new file that differs from the training file; None: like that."""

    label: str | None = None
    missing: Missing | None = None
    header: bool | None = None


@dataclass(frozen=True, eq=False)
class Samples:
    """Model inputs with targets; lengths None: no padding. `bounds` are the valid range of a value."""

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None
    bounds: Bounds | None = None
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> tuple[Tensor, ...]:
        """(x, y), or (x, y, lengths): for an evaluation."""
        return (self.x, self.y) if self.lengths is None else (self.x, self.y, self.lengths)


def samples_of(run: Path, data: str | None = None, how: Reading | None = None, checkpoint: Kept = "best") -> Samples:
    """The samples named by `data`; else the test samples of the run's training data, including user files; else the
    digits."""
    how = how or Reading()
    if data is None and (run / CELL).is_file():
        return _own(run, how)
    name = data or _trained_on(run) or "digits"
    path = Path(name)
    if path.is_dir() and name not in task_names():
        raise UsageError(f"{name!r} is a folder, which training maps; --data takes a file ({', '.join(SUFFIXES)}).")
    if path.suffix.lower() not in SUFFIXES:
        _refuse_options(how, name)
        return _read_as_trained(_test_of(load_task(name)), preprocess_in(run, checkpoint) if run.is_dir() else None)
    if not path.is_file():
        raise UsageError(f"there is no file {name!r}; --data takes a task's name or such a file with x and y.")
    learned = preprocess_in(run, checkpoint) if run.is_dir() else None
    return _read_unscaled(path, how) if learned is None else read_samples(path, learned, how, _forecast_of(run))


def _forecast_of(run: Path) -> dict[str, Any]:
    """The options of a run that was trained to forecast; none of another."""
    options = Folder(run).cell().task.keywords() if (run / CELL).is_file() else {}
    return options if options.get("task") == "forecast" else {}


def read_samples(path: Path, learned: Preprocess, how: Reading, forecast: Mapping[str, Any]) -> Samples:
    """A file with targets, preprocessed as the run's own data were; with the options of a `forecast`, its series."""
    like = replace(learned, length=sys.maxsize) if forecast else learned  # a series may be longer than a window
    raw = read_like(path, like, label=how.label, header=how.header)
    raw = _windows_in(raw, learned, forecast, path) if forecast else raw
    if raw.y is None:
        wanted = f" (a column {learned.layout.label!r})" if learned.layout.label else ""
        raise UsageError(f"{path}: expected labels{wanted} beside the values, found none; name them with --label.")
    x = learned.by(how.missing)(raw.x, raw.lengths)
    bounds, notes = _widen_bounds(x, learned)
    return Samples(x, raw.y, raw.lengths, bounds, (*raw.notes, *notes))


def _windows_in(raw: Raw, learned: Preprocess, forecast: Mapping[str, Any], path: Path) -> Raw:
    """Every window of the series, with the values that follow it."""
    target = forecast.get("target")
    targets = None if target is None else (learned.channels.index(target),)
    windows = Windows(forecast["window"], forecast.get("horizon") or 1, targets=targets)
    steps = [raw.x.shape[1]] * len(raw) if raw.lengths is None else raw.lengths.tolist()
    rows = [row for x, n in zip(raw.x.numpy(), steps, strict=True) for row in windows_of(x[:n], windows)]
    if not rows:
        raise UsageError(
            f"{path}: expected a series of at least {windows.window + windows.horizon} steps, a window of this run "
            f"and what follows it, got {max(steps)}."
        )
    made, note = stack(rows, rows[0]), f"{len(rows)} windows of {windows.window} steps"
    return Raw(made.x, made.y, notes=(*raw.notes, note))


def _read_as_trained(found: Samples, learned: Preprocess | None) -> Samples:
    """A task's samples, scaled with the run's preprocessing."""
    if learned is None or learned.inputs is None or (learned.scale == "none" and not learned.flagged):
        return found
    x = learned(found.x, found.lengths)
    bounds, notes = _widen_bounds(x, learned)
    return replace(found, x=x, bounds=bounds, notes=notes)


def _widen_bounds(x: Tensor, learned: Preprocess) -> tuple[Bounds | None, tuple[str, ...]]:
    """Inferred bounds are widened to include new data; given bounds are unchanged."""
    if learned.bounds is None or not learned.inferred or not x.numel():
        return learned.bounds, ()
    low, high = learned.bounds
    wide = (min(low, float(x.min())), max(high, float(x.max())))
    if wide == learned.bounds:
        return learned.bounds, ()
    return wide, (f"bounds widened from {low:g} .. {high:g} to {wide[0]:g} .. {wide[1]:g} for values of the new file",)


def _own(run: Path, how: Reading) -> Samples:
    _refuse_options(how, "the run's own data")
    cell = Folder(run).cell()
    try:
        task = open_task(cell.task)
    except OSError as gone:
        raise UsageError(f"what this run was trained on cannot be read ({gone}); name it with --data.") from gone
    held = load_preprocess(run)
    if held is None:
        refuse_older(cell, run)
    else:
        require_same(held, task, run)
    return _test_of(task)


def _refuse_options(how: Reading, what: str) -> None:
    given = next((name for name in ("label", "missing", "header") if getattr(how, name) is not None), None)
    if given is not None:
        raise UsageError(f"--{given.replace('header', 'no-header')} is for a file given with --data, not for {what}.")


def _trained_on(run: Path) -> str | None:
    """The task of a training run; None if there is no such run."""
    path = run / "config.json"
    try:
        name = read_json(path)["task"]["name"] if path.is_file() else None
    except (Damaged, KeyError, TypeError):
        return None  # the settings of a saved model, or of something else
    return name if isinstance(name, str) else None


def _test_of(task: Task) -> Samples:
    test = task.test.unpack()
    return Samples(test.x, test.y, test.lengths, task.bounds)


# -- for a model without preprocessing ------- -------------------------------------------------------------------------


def _read_unscaled(path: Path, how: Reading) -> Samples:
    """All samples of a file, unscaled, without bounds."""
    if path.suffix.lower() not in ARRAYS:
        missing, header = how.missing or "refuse", how.header is not False
        task = from_file(path, test=path, label=how.label, header=header, missing=missing)
        found, numbers = _test_of(task), [as_number(name) for name in task.class_names]
        # a class that is called by a number has that number, whichever others the file holds
        y = torch.tensor(numbers)[found.y].long() if numbers and None not in numbers else found.y
        return replace(found, y=y, bounds=None)
    arrays = read_arrays(path)
    if not {"x", "y"} <= set(arrays):
        raise UsageError(f"{path} must hold x and y, it has {', '.join(sorted(arrays)) or 'nothing'}.")
    answers, _ = number_words({"y": arrays["y"]}, [str(name) for name in arrays.get("class_names", ())])
    x, y = (tensor_of(name, value) for name, value in (("x", arrays["x"]), ("y", answers["y"])))
    if x.dim() < 2 or 0 in x.shape or y.shape[:1] != x.shape[:1]:
        raise UsageError(
            f"{path}: expected x (n, l, ...) of at least one sample and a label for each, got x {tuple(x.shape)} and "
            f"y {tuple(y.shape)}; one sample is x[None]."
        )
    return Samples(x, y, tensor_of("lengths", arrays["lengths"]) if "lengths" in arrays else None)
