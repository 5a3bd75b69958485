"""Out-of-memory errors that state how many samples would have fitted, found by measuring smaller batches.

The peak memory of a failed batch says little, since it is unknown how far it got. So the work is repeated with half
of its samples, a quarter, ... until it passes; its peak, which grows with the number of samples, gives the rest.

Before that, memory held only for speed (`runtime.memory.keeper`), such as recordings of steps and of layers' passes,
is released for good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from resolvent.runtime.memory import give_up_kept, lacks_memory, let_go

T = TypeVar("T")
MARGIN = 0.9  # usable share of the free memory, allowing for fragmentation
STREAMS = 128 << 20  # bytes: workspaces of matrix products, forward and backward, on the stream that records a step
_measuring = [False]  # a smaller batch is being measured: the outer call reports the outcome


class TooMany(torch.OutOfMemoryError):
    """More samples at once than the device's memory holds; `fits` is a number that fits, 0 if not even one does."""

    def __init__(self, message: str, fits: int) -> None:
        super().__init__(message)
        self.fits = fits


def within_memory(where: str, count: int, run: Callable[[int], T], share: int = 1) -> T:
    """run(count), the work on the first `count` samples; on lack of memory, an error with advice.

    Work that failed may be run again, and so must not build on what it left behind (running averages of a batch norm
    move once more). `share` is how many processes take part in a batch, each with `count` of its samples.
    """
    try:
        return run(count)
    except RuntimeError as error:
        if _measuring[0] or not lacks_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
    # Only here have the error and its frames, which held the failed batch, been freed.
    if give_up_kept():
        let_go()
        return within_memory(where, count, run, share)
    fits = _largest(count, run)
    advice = (
        f"set batch_size={fits * share}, which fits"
        if fits
        else "not even one sample fits: use shorter sequences, a smaller model or a half type"
    )
    raise TooMany(f"{where}: {count * share} samples at once do not fit in memory; {advice}. ({reason})", fits)


def _largest(count: int, run: Callable[[int], T]) -> int:
    """The number of samples that fit, less than `count`; 0 if not even one does."""
    _measuring[0] = True
    try:
        few = count
        while few > 1:
            few //= 2
            used = _measure_memory(partial(run, few))
            if used is not None:
                most = min(int((MARGIN * _room() - STREAMS) * few / max(used, 1)), count - 1)
                return most if most > few and _measure_memory(partial(run, most)) is not None else few
        return 0
    finally:
        _measuring[0] = False


def _measure_memory(work: Callable[[], object]) -> int | None:
    """The peak memory in bytes beyond what was in use before; None if it ran out of memory, too."""
    let_go()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        work()
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        return None
    return torch.cuda.max_memory_allocated() - before


def _room() -> int:
    """Bytes available to new tensors, within this process's share of the device."""
    let_go()
    free, total = torch.cuda.mem_get_info()
    share = torch.cuda.get_per_process_memory_fraction() * total
    return int(min(free + torch.cuda.memory_reserved(), share)) - torch.cuda.memory_allocated()
