"""Input and output arrays of CPU kernels; what is given up where a GPU's memory runs out.

A large output is fresh memory each time: its page faults can cost more than the scan.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

LARGE = 8 << 20  # bytes; below this the allocator hands out memory that it has used before
HUGE = 32 << 20  # from here on the C library never does, whatever it is told
SPARE = 128 << 20  # bytes of huge arrays that are kept for the next call
SAID = ("_ALLOC_FAILED", "CUDA error: out of memory")
_keepers: list[Callable[[], bool]] = []
use_count: Any = getattr(torch._C, "_storage_Use_Count", None)  # how many hold a storage; None where torch has none
_PAGE = 4096
_MADV_HUGEPAGE = 14


def fresh(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A contiguous tensor with the dtype and device of `like`, not initialised; in huge pages where Linux has them."""
    keep_freed_memory()
    size = prod(shape) * like.element_size()
    if size >= HUGE and like.device.type == "cpu" and use_count is not None:
        return spare.tensor(shape, like, size)
    x = torch.empty(shape, dtype=like.dtype, device=like.device)
    return _in_huge_pages(x) if size >= LARGE else x


def _in_huge_pages(x: Tensor) -> Tensor:
    if x.device.type == "cpu":
        advise = _madvise()
        if advise is not None:
            start = -(-x.data_ptr() // _PAGE) * _PAGE
            advise(start, (x.data_ptr() + x.nbytes - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)
    return x


class _Spare:
    """Huge arrays, kept so that the next call finds memory whose pages are there: that is two thirds of its time.

    An array is handed out again once nothing else refers to its storage: no tensor, view, graph or numpy array.
    """

    def __init__(self) -> None:
        self._kept: list[torch.UntypedStorage] = []  # the longest unused first
        self._lock = threading.Lock()

    def tensor(self, shape: tuple[int, ...], like: Tensor, size: int) -> Tensor:
        with self._lock:
            for i in range(len(self._kept)):
                if self._kept[i].nbytes() == size and self._free(i):
                    self._kept.append(self._kept.pop(i))
                    empty: Any = torch.empty(0, dtype=like.dtype)  # its set_ is typed as if it wanted strides
                    return empty.set_(self._kept[-1], 0, torch.Size(shape))
        x = _in_huge_pages(torch.empty(shape, dtype=like.dtype))
        if size <= SPARE:
            self._keep(x.untyped_storage())
        return x

    def _keep(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            self._kept.append(storage)
            while sum(s.nbytes() for s in self._kept) > SPARE:
                self._kept.pop(0)

    def _free(self, i: int) -> bool:
        """Whether the list alone holds it: no tensor, no other name of the storage, no other process."""
        storage = self._kept[i]
        alone: bool = use_count(storage._cdata) == 1
        return alone and _names([storage]) == _NAMES and not storage.is_shared()


def _names(held: list[torch.UntypedStorage]) -> int:
    return sys.getrefcount(held[0])


_NAMES = _names([torch.UntypedStorage(0)]) + 2  # in the list that keeps it, and in _free
spare = _Spare()


def fresh_like(x: Tensor) -> Tensor:
    """The same for the shape of a contiguous x; a small one in a third of the time."""
    return torch.empty_like(x) if x.nbytes < LARGE else fresh(x.shape, x)


def resolve(x: Tensor) -> Tensor:
    """x without a conjugation or sign that is still pending in a view: kernels read memory, the compiler does not."""
    if torch.compiler.is_compiling() or not (x.is_conj() or x.is_neg()):
        return x
    return x.resolve_conj().resolve_neg()


def plain(x: Tensor) -> Tensor:
    """x as its memory holds it: contiguous, no pending conjugation. To be read by a kernel, not by torch."""
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x if x.is_contiguous() else x.detach().contiguous()


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what one pass frees for the next, once per process.

    glibc hands blocks from 128 KiB on back to the kernel until it has seen larger ones freed; every pass then pays for
    fresh pages, up to half of its time for arrays of some MiB. Freeing one untouched block of nearly 32 MiB, the most
    it heeds, raises that limit; up to 62 MiB of free memory then stay with the process. The first 48 of them are to be
    huge pages, which saves a pass up to a tenth of its time; none is taken before it is written to. Elsewhere it does
    nothing.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")
    kept = [_in_huge_pages(torch.empty(24 << 20, dtype=torch.uint8, device="cpu")) for _ in range(2)]
    kept.clear()


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The C library's call: advice, so that a refusal (an older kernel, a restricted container) changes nothing."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    return advise


def keeper(give_up: Callable[[], bool]) -> Callable[[], bool]:
    """`give_up` is called where memory runs out; it tells whether there was anything to give up."""
    _keepers.append(give_up)
    return give_up


def give_up_kept() -> bool:
    """Give up what is kept for speed alone, all of it and for good; whether there was any."""
    given = [give_up() for give_up in _keepers]
    return any(given)


def lacks_memory(error: RuntimeError) -> bool:
    """Whether it was for lack of memory: torch's own error, or what its libraries say when they find none."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SAID)


def let_go() -> None:
    """Give back what failed work still holds: frames of an error that is gone, and the allocator's blocks."""
    gc.collect()
    torch.cuda.empty_cache()
