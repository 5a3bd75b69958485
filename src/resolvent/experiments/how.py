"""How cells are run, as far as it changes no number: where, until when, and what is kept of an attack."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from resolvent.training import Paused

Late = Callable[[], bool]


def never() -> bool:
    return False


def after(seconds: float) -> Late:
    """True from so many seconds on."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


@dataclass(frozen=True)
class How:
    """`late` is asked between steps, stages and batches of an attack: from the first True on nothing is begun.

    points   keep the attacked points, batch by batch, of an attack that is done; else what is known of every sample
    """

    device: str = "cpu"
    late: Late = never
    points: bool = False

    def check_time(self, what: str) -> None:
        if self.late():
            raise Paused(what)
