"""Numbers that a user types, each refused with the name of its option."""

from __future__ import annotations

import math

from resolvent.usage.error import UsageError


def require_within(option: str, value: int | None, least: int, most: int) -> None:
    """A whole number within [least, most]; None was not given."""
    if value is not None and not least <= value <= most:
        raise UsageError(f"{option} must be a whole number from {least} to {most}, got {value}.")


def require_number(option: str, value: float | None, *, zero: bool = False) -> None:
    """Finite and above zero, or zero too."""
    if value is not None and not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        least = "at least 0" if zero else "above 0"
        raise UsageError(f"{option} must be a finite number {least}, got {value:g}.")
