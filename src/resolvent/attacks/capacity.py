"""Out of memory: an error that names how many samples would have fitted, found by measuring fewer of them.

The memory of a failed batch tells little, for nobody knows how far it had come. So the work is run again with half of
its samples, a quarter, ... until it passes; its peak, which grows with the number of samples, then tells the rest.

Before that, what others keep for speed alone (`runtime.memory.keeper`), recordings of steps and of layers' passes among
them, is given up for good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from resolvent.runtime.memory import give_up_kept, lacks_memory, let_go

T = TypeVar("T")
MARGIN = 0.9  # of the free memory: what is cut into pieces cannot all be used
STREAMS = 128 << 20  # bytes: what matrix products keep, forwards and backwards, for the stream that records a step
_measuring = [False]  # fewer samples are being tried: whoever asked for that tells the outcome


class TooMany(torch.OutOfMemoryError):
    """More samples at once than the device's memory holds; `fits` is a number that it does, 0 where not even one."""

    def __init__(self, message: str, fits: int) -> None:
        super().__init__(message)
        self.fits = fits


def within_memory(where: str, count: int, run: Callable[[int], T], share: int = 1) -> T:
    """run(count), the work on the first `count` samples; where it runs out of memory, an error with advice.

    Work that failed may be run again, and so must not build on what it left behind (running averages of a batch norm
    move once more). `share` is how many processes take part in a batch, each with `count` of its samples.
    """
    try:
        return run(count)
    except RuntimeError as error:
        if _measuring[0] or not lacks_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
    # Here the error is gone, and with it the frames that kept the failed batch in memory.
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
    """How many samples fit, less than `count`; 0 where not even one does."""
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
    """The most bytes in use while it ran beyond those in use before; None where it ran out of memory, too."""
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
    """Bytes that new tensors may take: what is free, within the share of the device that this process may use."""
    let_go()
    free, total = torch.cuda.mem_get_info()
    share = torch.cuda.get_per_process_memory_fraction() * total
    return int(min(free + torch.cuda.memory_reserved(), share)) - torch.cuda.memory_allocated()
