"""Sequences as a file holds them, of any lengths, and their answers as words: the common end of every reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from resolvent.data.prepare import Own


@dataclass(frozen=True, eq=False)
class Sequences:
    """values: one (t, c) array a sample, NaN where missing; answers: one word a sample, as it is written."""

    values: list[np.ndarray]
    answers: list[str]
    where: str  # the file, for messages
    classes: tuple[str, ...] | None = None  # where the file lists them; none: numbers
    notes: tuple[str, ...] = ()


def stacked(parts: Mapping[str, Sequences]) -> tuple[dict[str, Own], tuple[str, ...]]:
    """Tensors padded with zeros to the longest sequence of all parts, and the names of the classes (none: targets)."""
    for part in parts.values():
        if not part.values:
            raise ValueError(f"{part.where}: expected at least one sample, found none.")
    channels = {value.shape[1]: part.where for part in parts.values() for value in part.values}
    if len(channels) > 1:
        raise ValueError(
            f"{', '.join(channels.values())}: expected the same channels throughout, got {sorted(channels)}."
        )
    names = class_names(parts)
    longest = max(len(value) for part in parts.values() for value in part.values)
    done = {name: _stack(part, longest, names) for name, part in parts.items()}
    return done, names


def class_names(parts: Mapping[str, Sequences]) -> tuple[str, ...]:
    """Sorted names, numbers by value; none when the answers are numbers that are not all whole."""
    listed = next((part.classes for part in parts.values() if part.classes is not None), None)
    found = {answer for part in parts.values() for answer in part.answers}
    if listed is not None:
        return listed
    numbers = {answer: _number(answer) for answer in found}
    if any(number is None for number in numbers.values()):
        return tuple(sorted(found))
    if any(number != round(number) for number in numbers.values() if number is not None):
        return ()
    samples = sum(len(part.answers) for part in parts.values())
    if len(found) > max(2, samples // 2):
        return ()  # hardly any answer comes twice: a quantity that happens to be whole
    return tuple(sorted(found, key=lambda answer: (numbers[answer], answer)))


def _stack(part: Sequences, longest: int, names: Sequence[str]) -> Own:
    x = np.zeros((len(part.values), longest, part.values[0].shape[1]), dtype=np.float32)
    lengths = np.array([len(value) for value in part.values])
    for row, value in zip(x, part.values, strict=True):
        row[: len(value)] = value
    if names:
        number = {name: i for i, name in enumerate(names)}
        y = torch.tensor([number[answer] for answer in part.answers])
    else:
        y = torch.tensor([float(answer) for answer in part.answers])
    steps = None if lengths.min() == longest else torch.from_numpy(lengths)
    return Own(torch.from_numpy(x), y, steps)


def number_of(cell: str, where: str) -> float:
    """A number, or NaN for an empty cell, "?", "nan" and "NA"."""
    text = cell.strip()
    if text in ("", "?") or text.lower() in ("nan", "na", "null", "none"):
        return float("nan")
    value = _number(text)
    if value is None:
        raise ValueError(f"{where}: expected a number or a missing value (empty, ?, nan), got {cell[:40]!r}.")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and "_" not in text else None
