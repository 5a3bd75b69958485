"""A map-style `torch.utils.data.Dataset`, or a `DataLoader`, as a Task.

    task = rv.data.from_dataset(mine)                          # mine[i] -> (x, y), x (l, c) or (l,), of any lengths
    task = rv.data.from_dataset(train, test=held_out)          # with a given test split
    task = rv.data.from_dataset(loader)                        # batches (x, y), or padded ones (x, y, lengths)

Samples are read once. A loader's shuffling and omissions are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from resolvent.data.preparation.prepare import Preparation, prepare
from resolvent.data.readers.arrays import own
from resolvent.data.readers.sequences import pad
from resolvent.data.readers.values import number_words, tensor_of
from resolvent.data.task import Task


def from_dataset(
    dataset: Dataset[Any] | DataLoader[Any],
    *,
    test: Dataset[Any] | DataLoader[Any] | None = None,
    name: str = "dataset",
    class_names: tuple[str, ...] = (),
    **options: Any,
) -> Task:
    """Every sample is a pair (x, y): x (l, c) real, (l,) real or tokens, y a class, a word, or real targets.

    A third value is the length of a padded sequence: (x, y, length), or (x, y, lengths) from a loader.
    Sequences of different lengths are padded, and the task has their lengths. The options are those of `from_arrays`:
    fractions of validation and test, seed, bounds, missing, scale.

    Examples:
        >>> pairs = torch.utils.data.TensorDataset(torch.randn(40, 12, 2), torch.arange(40) % 2)
        >>> rv.data.from_dataset(pairs).classes
        2
    """
    how = Preparation.of("from_dataset", **options)
    read = {"all": _read("dataset", dataset)}
    if test is not None:
        read = {"train": read["all"], "test": _read("test", test)}
    answers, names = number_words({part: np.asarray(ys) for part, (_, ys) in read.items()}, class_names)
    steps = max(len(x) for xs, _ in read.values() for x in xs)
    padded = {part: pad([x.numpy() for x in xs], steps) for part, (xs, _) in read.items()}
    even = all(bool((lengths == steps).all()) for _, lengths in padded.values())
    parts = {part: own(x, answers[part], None if even else lengths) for part, (x, lengths) in padded.items()}
    return prepare(parts, how, name=name, source="from_dataset", class_names=names)


def _read(where: str, dataset: Any) -> tuple[list[Tensor], list[Any]]:
    pairs = _unbatch(dataset) if isinstance(dataset, DataLoader) else _single(where, dataset)
    xs: list[Tensor] = []
    ys: list[Any] = []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise TypeError(f"from_dataset: expected (x, y) or (x, y, length), got {_name(pair)} at {where}[{i}].")
        x = _cut(tensor_of("x", pair[0]), pair[2:], f"{where}[{i}]")
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if x.dim() not in (1, 2) or not len(x):
            raise ValueError(f"from_dataset: expected x of shape (l,) or (l, c), got {tuple(x.shape)} at {where}[{i}].")
        if xs and (x.shape[1:] != xs[0].shape[1:] or x.is_floating_point() != xs[0].is_floating_point()):
            first = f"{tuple(xs[0].shape)} {xs[0].dtype}"
            raise ValueError(f"from_dataset: {where}[0] is {first}, {where}[{i}] {tuple(x.shape)} {x.dtype}.")
        xs.append(x)
        ys.append(pair[1].tolist() if isinstance(pair[1], Tensor | np.ndarray) else pair[1])
    if not xs:
        raise ValueError(f"from_dataset: {where} holds no samples.")
    return xs, ys


def _single(where: str, dataset: Any) -> Iterator[Any]:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"from_dataset: expected a map-style Dataset with a length, or a DataLoader, got "
            f"{type(dataset).__name__} as {where}; collect an iterable one into a list of pairs first."
        )
    return (dataset[i] for i in range(len(dataset)))


def _cut(x: Tensor, lengths: tuple[Any, ...] | list[Any], place: str) -> Tensor:
    """The valid steps of a padded sequence."""
    for length in lengths:
        steps = length.tolist() if isinstance(length, Tensor | np.ndarray | np.generic) else length
        if isinstance(steps, bool) or not isinstance(steps, int) or not 0 < steps <= len(x):
            raise ValueError(f"from_dataset: expected a length from 1 to {len(x)} steps, got {steps!r} at {place}.")
        x = x[:steps]
    return x


def _name(value: Any) -> str:
    """A type, and for a sequence its number of values."""
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, tuple | list) else kind


def _unbatch(loader: Iterable[Any]) -> Iterator[Any]:
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise TypeError(f"from_dataset: expected batches (x, y) or (x, y, lengths), got {_name(batch)}.")
        yield from zip(*batch, strict=True)
