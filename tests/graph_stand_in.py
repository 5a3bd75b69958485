"""What stands in for a CUDA graph on a CPU, so that recorded passes and steps run where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from resolvent.ops.library import recording
from resolvent.ops.step import recorded
from resolvent.runtime.transforms import as_run


class StandIn:
    """Runs the work again where a graph would be replayed: it too reads and writes at fixed places."""

    made = 0

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        work()
        self.work = work
        StandIn.made += 1

    def replay(self) -> None:
        recorded._recording.append(True)  # a graph's replay calls no layer
        try:
            with as_run(), recording(), torch.autocast("cpu", enabled=False):  # nor asks what is on around it
                self.work()
        finally:
            recorded._recording.pop()

    @staticmethod
    def aside(work: Callable[[], None], device: torch.device) -> None:
        work()
