"""Time, memory and copy rate of one piece of work; memory is best measured in a fresh process."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
COPIED = {"cpu": 2**27, "cuda": 2**30}  # bytes of the copied array: beyond any cache
Work = Callable[[], object]


def median_ms(work: Work, budget_s: float = 1.5, most: int = 200) -> float:
    """The median of repeated calls, in milliseconds, after two calls to warm up."""
    work()
    first = _time(work)
    repeats = max(5, min(most, int(budget_s / max(first, 1e-6))))
    gc.collect()
    gc.disable()
    try:
        return 1e3 * statistics.median(_time(work) for _ in range(repeats))
    finally:
        gc.enable()


def wait_for(work: Work, device: torch.device) -> Work:
    """The work including synchronisation: a GPU call returns before it is done."""
    if device.type != "cuda":
        return work

    def whole() -> None:
        work()
        torch.cuda.synchronize(device)

    return whole


def peak_extra_mb(work: Work, device: torch.device | None = None) -> float:
    """The peak memory of one call above the memory in use before: on the GPU, or resident in the process."""
    gc.collect()
    if device is not None and device.type == "cuda":
        return _gpu_extra_mb(work, device)
    if not CLEAR.exists():  # not Linux: only the high-water mark of the whole process is available
        before = _maxrss_mb()
        work()
        return _maxrss_mb() - before
    CLEAR.write_text("5")  # resets VmHWM to the present size
    before = _status_mb("VmRSS")
    work()
    return _status_mb("VmHWM") - before


def copy_rate(device: torch.device) -> float:
    """Bytes per second read and written by a copy of a large array: an upper bound for any pass over memory."""
    source = torch.ones(COPIED.get(device.type, 2**27) // 4, device=device)
    target = torch.empty_like(source)
    ms = median_ms(wait_for(lambda: target.copy_(source), device), budget_s=0.5)
    return 2 * source.numel() * source.element_size() / (1e-3 * ms)


def _gpu_extra_mb(work: Work, device: torch.device) -> float:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _time(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _status_mb(field: str) -> float:
    line = next(row for row in STATUS.read_text().splitlines() if row.startswith(field))
    return int(line.split()[1]) / 1024


def _maxrss_mb() -> float:
    import resource  # not on Windows

    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
