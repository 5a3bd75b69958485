"""Settings of attacks whose whole numbers are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from resolvent.usage.numbers import check_count


class Counted:
    """Settings with whole numbers, each of which has a least value; None passes where it is the default."""

    least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                check_count(type(self).__name__, least, **{name: value})
