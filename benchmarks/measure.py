"""Timing and memory of one piece of work in a fresh process."""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def median_ms(work: Callable[[], object], budget_s: float = 1.5, most: int = 200) -> float:
    """The median of repeated calls, in milliseconds, after two calls to warm up."""
    work()
    first = _timed(work)
    repeats = max(5, min(most, int(budget_s / max(first, 1e-6))))
    gc.collect()
    gc.disable()
    try:
        return 1e3 * statistics.median(_timed(work) for _ in range(repeats))
    finally:
        gc.enable()


def peak_extra_mb(work: Callable[[], object]) -> float:
    """How far one call raises the process's resident memory above what it holds before."""
    gc.collect()
    if not CLEAR.exists():  # not Linux: the high-water mark of the whole process is all there is
        before = _maxrss_mb()
        work()
        return _maxrss_mb() - before
    CLEAR.write_text("5")  # resets VmHWM to the present size
    before = _status_mb("VmRSS")
    work()
    return _status_mb("VmHWM") - before


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _status_mb(field: str) -> float:
    line = next(row for row in STATUS.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1]) / 1024


def _maxrss_mb() -> float:
    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
