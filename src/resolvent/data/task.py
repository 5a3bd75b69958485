"""What a model is trained on and measured by, as one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Split:
    """Samples with their answers: x (n, l, c) real or (n, l) tokens, y (n,) classes or (n, ...) real targets.

    `lengths` (n,) says how many steps of each sequence count; None: all of them.
    """

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    def select(self, index: Tensor) -> Split:
        """The samples at `index` (k,), in that order."""
        lengths = None if self.lengths is None else self.lengths[index]
        return Split(self.x[index], self.y[index], lengths)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Split:
        """On another device; real inputs and targets also in another dtype, tokens and classes as they are."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Split(_moved(self.x, device, dtype), _moved(self.y, device, dtype), lengths)


@dataclass(frozen=True)
class Task:
    """Three splits and what they are. Either `channels` or `vocabulary` is set; `classes` None means regression.

    bounds    the valid range of an input value, which an attack must keep; None: any real number
    classes   number of classes; None: y holds real targets
    """

    name: str
    train: Split
    validation: Split
    test: Split
    length: int
    channels: int | None = None
    vocabulary: int | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    bounds: Bounds | None = None
    licence: str = "unknown"
    source: str = "unknown"

    def __post_init__(self) -> None:
        if (self.channels is None) == (self.vocabulary is None):
            raise ValueError(
                f"Task {self.name!r}: expected either channels (real input) or vocabulary (tokens), "
                f"got channels={self.channels}, vocabulary={self.vocabulary}."
            )
        for name, split in self.splits().items():
            _check_split(self, name, split)

    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def head(self, samples: int) -> Task:
        """The same task with at most `samples` samples in each split: a first try in seconds."""
        return self._each(lambda split: split.select(torch.arange(min(samples, len(split)))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Task:
        return self._each(lambda split: split.to(device, dtype))

    def _each(self, change: Callable[[Split], Split]) -> Task:
        train, validation, test = (change(split) for split in self.splits().values())
        return replace(self, train=train, validation=validation, test=test)


def _moved(value: Tensor, device: torch.device | str, dtype: torch.dtype | None) -> Tensor:
    return value.to(device, dtype if value.is_floating_point() else None)


def _check_split(task: Task, name: str, split: Split) -> None:
    where = f"Task {task.name!r}, {name}"
    shape = (task.length,) if task.channels is None else (task.length, task.channels)
    if split.x.shape[1:] != shape:
        raise ValueError(f"{where}: expected x of shape (n, {str(shape)[1:]}, got {tuple(split.x.shape)}.")
    if split.y.shape[:1] != split.x.shape[:1]:
        raise ValueError(f"{where}: expected one answer a sample, got {len(split)} samples, y {tuple(split.y.shape)}.")
    if split.lengths is not None:
        _check_lengths(where, split, task.length)
    if task.classes is not None:
        _check_range(where, "labels", split.y, task.classes)
    if task.vocabulary is not None:
        _check_range(where, "tokens", split.x, task.vocabulary)
    if task.bounds is not None:
        _check_bounds(where, split.x, task.bounds)


def _check_range(where: str, what: str, values: Tensor, top: int) -> None:
    if values.is_floating_point() or values.dtype == torch.bool:
        raise TypeError(f"{where}: expected whole numbers as {what}, got {values.dtype}; convert them with .long().")
    if not values.numel():
        return
    first, last = int(values.min()), int(values.max())
    if first < 0 or last >= top:
        raise ValueError(f"{where}: expected {what} from 0 to {top - 1}, got {first} to {last}; number them from 0.")


def _check_lengths(where: str, split: Split, length: int) -> None:
    lengths = split.lengths
    assert lengths is not None
    if lengths.shape != (len(split),) or lengths.is_floating_point():
        got = f"{tuple(lengths.shape)} {lengths.dtype}"
        raise ValueError(f"{where}: expected whole lengths of shape ({len(split)},), got {got}.")
    if len(split) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= length:
        got = f"{int(lengths.min())} to {int(lengths.max())}"
        raise ValueError(f"{where}: expected lengths from 1 to {length}, got {got}; drop empty sequences.")


def _check_bounds(where: str, x: Tensor, bounds: Bounds) -> None:
    low, high = bounds
    if x.numel() and not (low <= float(x.min()) and float(x.max()) <= high):
        raise ValueError(
            f"{where}: expected inputs within [{low}, {high}], got {float(x.min()):.4g} to {float(x.max()):.4g}; "
            "widen the bounds or rescale the data."
        )
