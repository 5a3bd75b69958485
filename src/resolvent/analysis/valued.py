"""Results that are primarily one number."""

from __future__ import annotations

from typing import Any


class Valued:
    """float(result) is its value."""

    value: Any

    def __float__(self) -> float:
        return float(self.value)
