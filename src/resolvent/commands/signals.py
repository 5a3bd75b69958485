"""How the program ends when it is asked to: Ctrl-C, a closed terminal (SIGHUP) and SIGTERM alike.

The command is interrupted where it stands, tidies up, says one line, and the status is 128 and the signal's number:
130, 129, 143. While the libraries are still being imported there is nothing to tidy up, and the program ends at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 3.0  # seconds after the first signal in which others (torchrun and terminals repeat theirs) change nothing
OUTERMOST = ("execute", "_run_guarded", "_run_command", "parse", "main", "<module>")  # they only start a command


class Stop:
    """What was asked of this process: the number of the first signal, 0 before one came."""

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._since > PATIENCE:
                os._exit(128 + number)
            return
        self.number, self._since = number, time.monotonic()
        if importing(frame):
            os.write(sys.stderr.fileno(), b"resolvent: stopped.\n")
            os._exit(128 + number)
        raise KeyboardInterrupt

    def status(self, status: int) -> int:
        """An exit status of Ctrl-C as that of the signal which came."""
        return 128 + self.number if status == 130 and self.number else status


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Every signal that asks for an end interrupts what runs inside; one that somebody else handles stays theirs."""
    stop, before = Stop(), {}
    if threading.current_thread() is threading.main_thread():
        for number in _signals():
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    """A process of torchrun ends at once by SIGTERM: it may wait for others that are gone already."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    names = ("SIGINT",) if several else ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def importing(frame: FrameType | None) -> bool:
    """Whether the command still imports what it needs."""
    outer: FrameType | None = None  # who asked for the outermost import
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_back is not None:
            outer = frame.f_back
        frame = frame.f_back
    return outer is not None and outer.f_code.co_name in OUTERMOST
