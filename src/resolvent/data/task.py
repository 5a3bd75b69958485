"""Training and evaluation data as one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.data.augment import CropFlip
from resolvent.data.describe import summarise
from resolvent.data.preparation.preprocess import Bounds, Preprocess
from resolvent.data.readers.tokeniser import Tokeniser


@dataclass(frozen=True)
class Split:
    """Samples with their targets: x (n, l, c) real or (n, l) tokens, y (n,) classes or (n, ...) real targets.

    `lengths` (n,) is the number of valid steps of each sequence; None: all. Pairs of documents have x (n, 2, l) and
    lengths (n, 2). With `packed`, x holds small integers as stored on disk, and `select` unpacks the samples it takes:
    tokens as int64, levels k of 0 .. packed as the float32 number k / packed, or 2 k / packed - 1 if `centred`.
    `mapped`: x is memory-mapped from a file that may be larger than memory; samples are read on access.

    Examples:
        >>> test = rv.load_task("digits").test
        >>> test.x.shape, test.y.shape
        (torch.Size([447, 64, 1]), torch.Size([447]))
    """

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None
    packed: int | None = None  # 0: tokens
    centred: bool = False  # packed levels scaled to -1 to 1 instead of 0 to 1
    mapped: bool = False

    def __len__(self) -> int:
        return self.x.shape[0]

    def select(self, index: Tensor) -> Split:
        """The samples at `index` (k,), in that order, unpacked."""
        return self.gather(index).unpack()

    def gather(self, index: Tensor) -> Split:
        """The same as stored: less data to move."""
        lengths = None if self.lengths is None else self.lengths[index]
        return replace(self, x=self.x[index], y=self.y[index], lengths=lengths, mapped=False)

    def unpack(self) -> Split:
        """The same samples in the form a model reads."""
        return self if self.packed is None else replace(self, x=self._unpack(self.x), packed=None, centred=False)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Split:
        """On another device; real inputs and targets also in another dtype, tokens and classes unchanged."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        x = self.unpack().x if self.packed and dtype not in (None, torch.float32) else self.x
        whole = self if x is self.x else replace(self, packed=None, centred=False)
        moved = _move(x, device, dtype)
        mapped = self.mapped and moved is self.x
        return replace(whole, x=moved, y=_move(self.y, device, dtype), lengths=lengths, mapped=mapped)

    def _unpack(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return x
        if not self.packed:
            return x.long()
        x = x.float().div_(torch.full((), self.packed, dtype=torch.float32, device=x.device))
        return x.sub_(0.5).mul_(2.0) if self.centred else x


@dataclass(frozen=True)
class Task:
    """Three splits and their metadata. Either `channels` or `vocabulary` is set; `classes` None means regression.

    bounds    the valid range of an input value, within which an attack must stay; None: any real number
    classes   number of classes; None: y holds real targets
    pair      a sample is two documents: x (n, 2, l)
    augment   random augmentation of training samples in every epoch
    notes     how the data were processed
    tokeniser    how text became tokens, for text tasks
    preprocess   how raw values became those of the splits, to apply to new data; None: they are raw
    horizon      for forecasting: y holds this many steps following x; None: no forecast

    Examples:
        >>> task = rv.load_task("digits")
        >>> task.length, task.channels, task.classes, task.bounds
        (64, 1, 10, (0.0, 1.0))
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
    pair: bool = False
    augment: CropFlip | None = None
    notes: tuple[str, ...] = ()
    tokeniser: Tokeniser | None = None
    preprocess: Preprocess | None = None
    horizon: int | None = None

    def __post_init__(self) -> None:
        if (self.channels is None) == (self.vocabulary is None):
            raise ValueError(
                f"Task {self.name!r}: expected either channels (real input) or vocabulary (tokens), "
                f"got channels={self.channels}, vocabulary={self.vocabulary}."
            )
        for name, split in self.splits().items():
            _check_split(self, name, split)

    def __repr__(self) -> str:
        return summarise(self)

    def splits(self) -> dict[str, Split]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def head(self, samples: int) -> Task:
        """The same task with at most `samples` samples in each split: for quick trials."""
        return self._each(lambda split: split.select(torch.arange(min(samples, len(split)))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Task:
        return self._each(lambda split: split.to(device, dtype))

    def describe(self) -> str:
        """Sizes, shapes, classes, bounds, licence and source, as text."""
        return summarise(self)

    def _each(self, change: Callable[[Split], Split]) -> Task:
        train, validation, test = (change(split) for split in self.splits().values())
        return replace(self, train=train, validation=validation, test=test)


def _move(value: Tensor, device: torch.device | str, dtype: torch.dtype | None) -> Tensor:
    return value.to(device, dtype if value.is_floating_point() else None)


def _check_split(task: Task, name: str, split: Split) -> None:
    where = f"Task {task.name!r}, {name}"
    shape: tuple[int, ...] = (2, task.length) if task.pair else (task.length,)
    shape += () if task.channels is None else (task.channels,)
    if split.x.shape[1:] != shape:
        raise ValueError(f"{where}: expected x of shape (n, {str(shape)[1:]}, got {tuple(split.x.shape)}.")
    if split.y.shape[:1] != split.x.shape[:1]:
        raise ValueError(f"{where}: expected one label per sample, got {len(split)} samples, y {tuple(split.y.shape)}.")
    if split.lengths is not None:
        _check_lengths(where, split, task.length)
    if task.classes is not None:
        _check_range(where, "labels", split.y, task.classes)
    if task.vocabulary is not None:
        _check_range(where, "tokens", split.x, task.vocabulary)
    if task.bounds is not None:
        _check_bounds(where, split, task.bounds)


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
    shape = split.x.shape[:2] if split.x.dim() == 3 and not split.x.is_floating_point() else split.x.shape[:1]
    if lengths.shape != shape or lengths.is_floating_point():
        got = f"{tuple(lengths.shape)} {lengths.dtype}"
        raise ValueError(f"{where}: expected whole lengths of shape {tuple(shape)}, got {got}.")
    if len(split) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= length:
        got = f"{int(lengths.min())} to {int(lengths.max())}"
        raise ValueError(f"{where}: expected lengths from 1 to {length}, got {got}; drop empty sequences.")


def _check_bounds(where: str, split: Split, bounds: Bounds) -> None:
    if not split.x.numel():
        return
    low, high = bounds
    first, last = split._unpack(torch.stack(split.x.aminmax())).tolist()
    if not (low <= first and last <= high):
        raise ValueError(
            f"{where}: expected inputs within [{low}, {high}], got {first:.4g} to {last:.4g}; "
            "widen the bounds or rescale the data."
        )
