"""Checks of plain values given by users: integers, numbers, names from a list."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_count(where: str, least: int, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{where}: {name} must be a whole number, got {value!r} of type {type(value).__name__}.")
        if value < least:
            raise ValueError(f"{where}: {name} must be at least {least}, got {value}.")


class Counted:
    """A dataclass of settings with whole numbers that have a least value each; None passes where its type says so."""

    least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # whoever inherits is a dataclass
            value = getattr(self, field.name)
            if field.name in self.least and not (value is None and "None" in str(field.type)):
                check_count(type(self).__name__, self.least[field.name], **{field.name: value})


def check_positive(where: str, **values: Any) -> None:
    for name, value in values.items():
        _check_number(where, name, value)
        if not 0 < value < math.inf:
            raise ValueError(f"{where}: {name} must be positive and finite, got {value}.")


def check_not_negative(where: str, **values: Any) -> None:
    for name, value in values.items():
        _check_number(where, name, value)
        if not 0 <= value < math.inf:
            raise ValueError(f"{where}: {name} must be finite and not negative, got {value}.")


def check_share(where: str, **values: Any) -> None:
    """Require numbers from 0 to 1."""
    for name, value in values.items():
        _check_number(where, name, value)
        if not 0 <= value <= 1:
            raise ValueError(f"{where}: {name} must lie between 0 and 1, got {value}.")


def check_fraction(where: str, **values: Any) -> None:
    """Numbers between 0 and 1, neither of them."""
    for name, value in values.items():
        _check_number(where, name, value)
        if not 0 < value < 1:
            raise ValueError(f"{where}: {name} must lie strictly between 0 and 1, got {value}.")


def check_choice(where: str, name: str, value: Any, choices: Iterable[Any]) -> None:
    """One of these, or an error with the nearest."""
    known = tuple(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise ValueError(f"{where}: {name} must be one of {listed}; got {value!r}{did_you_mean(value, known)}")


def list_some(names: Iterable[str], most: int) -> str:
    """`a, b and 3 more`."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")


def did_you_mean(value: Any, known: Iterable[Any]) -> str:
    """The end of a message about a wrong name: `; did you mean 'batch'?`, or a full stop where none is like it."""
    near = nearest(value, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."


def nearest(value: Any, known: Iterable[Any]) -> list[Any]:
    """Up to three names that are spelt like it, the nearest first."""
    spelt = {str(each).lower(): each for each in known}
    return [spelt[name] for name in difflib.get_close_matches(str(value).lower(), list(spelt), 3, cutoff=0.5)]


def _check_number(where: str, name: str, value: Any) -> None:
    if not is_number(value):
        raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
