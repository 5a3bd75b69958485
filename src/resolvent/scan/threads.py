"""How many threads a CPU kernel may start now. The answer never changes a result, only who computes it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_busy = threading.Lock()  # not every threading layer of numba survives two callers at once
_forked = False


def _mark_forked() -> None:
    global _busy, _forked
    _forked = True
    _busy = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)  # OpenMP aborts when its threads are used after a fork


@contextmanager
def team(numba: Any, work: int, least: int = 1 << 16) -> Iterator[int]:
    """The number of threads for `work` element updates: 1 asks for the serial kernel, more for the parallel one.

    `torch.set_num_threads` rules. Small work, a forked process (a DataLoader's worker) and a second caller at the same
    time run serially.
    """
    threads = 1 if work < least or _forked else min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if threads == 1 or not _busy.acquire(blocking=False):
        yield 1
        return
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(threads)
        yield threads
    finally:
        numba.set_num_threads(before)
        _busy.release()
