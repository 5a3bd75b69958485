"""Sequences of any lengths as read from a file, with their targets as words: the common format of all readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.preparation.prepare import Own
from resolvent.data.preparation.preprocess import Layout


@dataclass(frozen=True, eq=False)
class Sequences:
    """values: one (t, c) array per sample, NaN where missing; answers: one word per sample, as written, or none."""

    values: list[np.ndarray]
    answers: list[str]
    where: str  # the file, for messages
    classes: tuple[str, ...] | None = None  # if the file lists them; none: numbers
    notes: tuple[str, ...] = ()
    layout: Layout = field(default_factory=Layout)
    ids: tuple[str, ...] = ()  # sample ids in the file
    groups: tuple[str, ...] = ()  # one word per sample: which belong together


def stack_parts(parts: Mapping[str, Sequences], classes: bool = False) -> tuple[dict[str, Own], tuple[str, ...]]:
    """Tensors padded with zeros to the longest sequence of all parts, and the names of the classes (none: targets)."""
    for part in parts.values():
        if not part.values:
            raise ValueError(f"{part.where}: expected at least one sample, found none.")
    channels = {value.shape[1]: part.where for part in parts.values() for value in part.values}
    if len(channels) > 1:
        raise ValueError(
            f"{', '.join(channels.values())}: expected the same channels throughout, got {sorted(channels)}."
        )
    names = class_names(parts, classes)
    longest = max(len(value) for part in parts.values() for value in part.values)
    even = all(len(value) == longest for part in parts.values() for value in part.values)
    done = {name: _own(part, longest, names, even) for name, part in parts.items()}
    return done, names


def class_names(parts: Mapping[str, Sequences], classes: bool = False) -> tuple[str, ...]:
    """Sorted names, numbers by value; none when these are not all whole, or hardly come twice and may be no classes."""
    listed = next((part.classes for part in parts.values() if part.classes is not None), None)
    found = {answer for part in parts.values() for answer in part.answers}
    if listed is not None:
        return listed
    numbers = {answer: as_number(answer) for answer in found}
    words = {answer for answer, number in numbers.items() if number is None}
    if words and words < found and all(map(is_missing, words)):
        where = next(part.where for part in parts.values() if words & set(part.answers))
        raise ValueError(f"{where}: expected a label in every row, got {min(words)!r} among numbers; drop such rows.")
    if words:
        return tuple(sorted(found))
    if any(number != round(number) for number in numbers.values() if number is not None):
        return ()
    samples = sum(len(part.answers) for part in parts.values())
    if not classes and len(set(numbers.values())) > max(2, samples // 2):
        return ()  # a quantity that happens to be whole
    spelt = sorted(found, key=lambda answer: (numbers[answer], len(answer), answer))
    return tuple(name for i, name in enumerate(spelt) if not i or numbers[name] != numbers[spelt[i - 1]])  # 1.0 = 1


def _own(part: Sequences, longest: int, names: Sequence[str], even: bool) -> Own:
    x, lengths = pad(part.values, longest)
    if names:
        number: dict[Any, int] = {as_number(name): i for i, name in enumerate(names)}
        number |= {name: i for i, name in enumerate(names)}
        y = torch.tensor([number[answer if answer in number else as_number(answer)] for answer in part.answers])
    else:
        y = torch.tensor([float(answer) for answer in part.answers])
    return Own(x, y, None if even else lengths, part.groups)


def pad(values: Sequence[np.ndarray], longest: int) -> tuple[Tensor, Tensor]:
    """(n, longest, c) padded with zeros, and lengths (n,)."""
    wide = np.result_type(*{value.dtype for value in values})
    x = np.zeros((len(values), longest, *values[0].shape[1:]), dtype=wide)
    for row, value in zip(x, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(x), torch.tensor([len(value) for value in values])


# what people and spreadsheets write where they have no number
_WORDS = {"-", "--", "na", "null", "none"}  # of these a class may be called
_MISSING = _WORDS | {"", "?", "nan", "-nan", "n/a", "n.a.", "<na>", "#na", "#n/a", "#value!", "#div/0!", "#num!",
                     "#ref!", "#name?"}  # fmt: skip
_TRUTH = {"false": 0.0, "true": 1.0}


def is_missing(cell: str, *, name: bool = False) -> bool:
    """Whether a cell holds nothing; `name`: it may be the name of a class, which some of these are."""
    return cell.strip().lower() in (_MISSING - _WORDS if name else _MISSING)


def number_of(cell: str, where: str) -> float:
    """A number, or NaN where it is missing."""
    if is_missing(cell):
        return float("nan")
    value = _TRUTH.get(cell.strip().lower(), as_number(cell.strip()))
    if value is None:
        raise ValueError(f"{where}: expected a number, or a missing value (empty, ?, nan), got {cell[:40]!r}.")
    return value


def is_word(cell: str) -> bool:
    """Neither a number nor missing, nor true or false."""
    try:
        return not is_missing(cell) and cell.strip().lower() not in _TRUTH and bool(np.isnan(float(cell)))
    except ValueError:
        return True


def as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and "_" not in text else None
