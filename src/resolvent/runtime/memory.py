"""Input and output arrays of CPU kernels; releasing memory when a GPU's runs out.

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

LARGE = 8 << 20  # bytes; below this the allocator reuses memory
HUGE = 32 << 20  # from here on the C library never does
SPARE = 128 << 20  # bytes of huge arrays kept for the next call
SAID = ("_ALLOC_FAILED", "CUDA error: out of memory")
_keepers: list[Callable[[], bool]] = []
use_count: Any = getattr(torch._C, "_storage_Use_Count", None)  # reference count of a storage; None if torch lacks it
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
    """A pool of huge arrays with pages already mapped, which saves two thirds of a call's time.

    An array is reused once nothing else refers to its storage: no tensor, view, graph or numpy array.
    """

    def __init__(self) -> None:
        self._kept: list[torch.UntypedStorage] = []  # least recently used first
        self._lock = threading.Lock()

    def tensor(self, shape: tuple[int, ...], like: Tensor, size: int) -> Tensor:
        with self._lock:
            for i in range(len(self._kept)):
                if self._kept[i].nbytes() == size and self._free(i):
                    self._kept.append(self._kept.pop(i))
                    empty: Any = torch.empty(0, dtype=like.dtype)  # its set_ is typed as if it required strides
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
        """Whether only the pool holds it: no tensor, no other reference to the storage, no other process."""
        storage = self._kept[i]
        alone: bool = use_count(storage._cdata) == 1
        return alone and _names([storage]) == _NAMES and not storage.is_shared()


def _names(held: list[torch.UntypedStorage]) -> int:
    return sys.getrefcount(held[0])


_NAMES = _names([torch.UntypedStorage(0)]) + 2  # references in the pool, and in _free
spare = _Spare()


def fresh_like(x: Tensor) -> Tensor:
    """The same for the shape of a contiguous x; three times faster for a small one."""
    return torch.empty_like(x) if x.nbytes < LARGE else fresh(x.shape, x)


def resolve(x: Tensor) -> Tensor:
    """x with lazy conjugation or negation resolved, which kernels reading memory would miss."""
    if torch.compiler.is_compiling() or not (x.is_conj() or x.is_neg()):
        return x
    return x.resolve_conj().resolve_neg()


def plain(x: Tensor) -> Tensor:
    """x as plain memory: contiguous, no lazy conjugation. For a kernel, not for torch."""
    if x.is_conj() or x.is_neg():  # not by `resolve`: a streaming step feels one more call
        x = resolve(x)
    return x if x.is_contiguous() else x.detach().contiguous()


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next pass; once per process.

    glibc returns blocks from 128 KiB on to the kernel until it has seen larger ones freed; every pass then pays for
    fresh pages, up to half of its time for arrays of some MiB. Freeing one untouched block of nearly 32 MiB, the
    maximum it takes into account, raises that limit; up to 62 MiB of free memory then stay with the process. The first
    48 of them are advised to be huge pages, which saves up to a tenth of a pass; none is used before it is written to.
    No effect on other platforms.
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
    """Register `give_up` to be called when memory runs out; it returns whether it released anything."""
    _keepers.append(give_up)
    return give_up


def give_up_kept() -> bool:
    """Release for good everything kept only for speed; returns whether there was any."""
    given = [give_up() for give_up in _keepers]
    return any(given)


def lacks_memory(error: RuntimeError) -> bool:
    """Whether it was for lack of memory: torch's own error, or its libraries' messages."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SAID)


def let_go() -> None:
    """Release what failed work still holds: reference cycles of its frames, and the allocator's cached blocks."""
    gc.collect()
    torch.cuda.empty_cache()
