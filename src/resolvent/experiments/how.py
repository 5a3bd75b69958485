"""How cells are run, without effect on results: device, time limit, and what is kept of an attack."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from resolvent.training import Paused

Late = Callable[[], bool]


def never() -> bool:
    return False


def after(seconds: float) -> Late:
    """True once this many seconds have passed."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


@dataclass(frozen=True)
class How:
    """`late` is called between steps, stages and batches of an attack: once it returns True nothing new is started.

    points   keep the attacked points of finished attacks; otherwise only the record of every sample
    """

    device: str = "cpu"
    late: Late = never
    points: bool = False

    def check_time(self, what: str) -> None:
        if self.late():
            raise Paused(what)
