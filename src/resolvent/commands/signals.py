"""How the program ends on signals: Ctrl-C, a closed terminal (SIGHUP) and SIGTERM alike.

The command is interrupted, cleans up and prints one line; the exit status is 128 plus the signal's number:
130, 129, 143. While the libraries are still being imported there is nothing to clean up, and the program ends at once.
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

PATIENCE = 3.0  # seconds after the first signal during which repeats (by torchrun and terminals) are ignored
OUTERMOST = ("execute", "_run_guarded", "_run_command", "parse", "main", "<module>")  # these only start a command


class Stop:
    """The number of the first signal received; 0 before any."""

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
        """Translate the exit status of Ctrl-C to that of the received signal."""
        return 128 + self.number if status == 130 and self.number else status


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Termination signals interrupt the code inside; signals with a foreign handler are left alone."""
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
    """The handled signals; torchrun's processes end at once on SIGTERM, as they may be waiting for lost ones."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    names = ("SIGINT",) if several else ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def importing(frame: FrameType | None) -> bool:
    """Whether the command is still importing its modules."""
    outer: FrameType | None = None  # the caller of the outermost import
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and frame.f_back is not None:
            outer = frame.f_back
        frame = frame.f_back
    return outer is not None and outer.f_code.co_name in OUTERMOST
