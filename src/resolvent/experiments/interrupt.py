"""How a process that torchrun started stops: by Ctrl-C, or because the others are gone.

The terminal signals every process, and torchrun passes the signal on to all of them once more. The second one would
come while the first is being answered: it is ignored.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch.distributed as dist

from resolvent.experiments.store.folder import RunError


@contextmanager
def interrupted_once() -> Iterator[None]:
    """One KeyboardInterrupt, however many signals come; a process that torchrun did not start is left as it is."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    if not several or not mine:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)  # stays: until the process ends, the second signal may still come
    yield


@contextmanager
def others_missed() -> Iterator[None]:
    """A process whose others are gone (stopped, killed, their machine lost) says so."""
    try:
        yield
    except RuntimeError as wrong:
        if not is_loss(wrong):
            raise
        raise RunError(
            f"run: another process of torchrun is gone ({str(wrong).splitlines()[0]}); what was finished is kept, and "
            "the same command resumes from there."
        ) from wrong


def is_loss(wrong: RuntimeError) -> bool:
    """Whether an error is one of processes that do not reach each other: gloo has no type of its own for it."""
    return isinstance(wrong, dist.DistError) or "gloo" in str(wrong) or "Connection closed by peer" in str(wrong)
