"""Plain values that users give, checked: whole numbers, numbers, names from a list."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_count(where: str, least: int, **values: Any) -> None:
    for name, value in values.items():
        if not is_whole(value):
            raise TypeError(f"{where}: {name} must be a whole number, got {value!r} of type {type(value).__name__}.")
        if value < least:
            raise ValueError(f"{where}: {name} must be at least {least}, got {value}.")


class Counted:
    """Settings with whole numbers, each of which has a least value; None passes where it is the default."""

    least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                check_count(type(self).__name__, least, **{name: value})


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
    """Numbers from 0 to 1."""
    for name, value in values.items():
        _check_number(where, name, value)
        if not 0 <= value <= 1:
            raise ValueError(f"{where}: {name} must lie between 0 and 1, got {value}.")


def check_choice(where: str, name: str, value: Any, choices: Sequence[str], cutoff: float = 0.6) -> None:
    """One of these names, or an error with the nearest: so close to it at least, from 0 to 1."""
    if value not in choices:
        near = difflib.get_close_matches(str(value).lower(), choices, 1, cutoff)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"{where}: {name} must be one of {', '.join(map(repr, choices))}; got {value!r}{hint}")


def _check_number(where: str, name: str, value: Any) -> None:
    if not is_number(value):
        raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
