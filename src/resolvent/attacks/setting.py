"""Checks of the numbers in an attack's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar


class Counted:
    """Settings with whole numbers, each of which has a least value; None passes where it is the default."""

    least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                check_count(type(self).__name__, least, **{name: value})


def check_count(where: str, least: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{where}: {name} must be a whole number, got {value!r} of type {type(value).__name__}.")
        if value < least:
            raise ValueError(f"{where}: {name} must be at least {least}, got {value}.")


def check_positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{where}: {name} must be positive and finite, got {value}.")


def check_share(where: str, **values: float) -> None:
    """Numbers from 0 to 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.")
        if not 0 <= value <= 1:
            raise ValueError(f"{where}: {name} must lie between 0 and 1, got {value}.")
