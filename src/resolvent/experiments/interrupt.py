"""How a process that torchrun started stops: by Ctrl-C, or because the others have gone.

The terminal signals every process, and torchrun forwards the signal to all of them again. The second one would
arrive while the first is being handled: it is ignored.
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
    """One KeyboardInterrupt, however many signals arrive; unchanged in processes not started by torchrun."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    if not several or not mine:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)  # stays: the second signal may arrive until the process ends
    yield


@contextmanager
def others_missed() -> Iterator[None]:
    """Reports when the other processes are gone (stopped, killed, their machine lost)."""
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
    """Whether an error means that processes lost their connection: gloo has no separate type for it."""
    return isinstance(wrong, dist.DistError) or "gloo" in str(wrong) or "Connection closed by peer" in str(wrong)
