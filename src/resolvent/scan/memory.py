"""Input and output arrays of CPU kernels.

A large output is fresh memory each time: its page faults can cost more than the scan.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

LARGE = 8 << 20  # bytes; below this the allocator hands out memory that it has used before
_PAGE = 4096
_MADV_HUGEPAGE = 14


def fresh(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A contiguous tensor with the dtype and device of `like`, not initialised; in huge pages where Linux has them."""
    keep_freed_memory()
    x = torch.empty(shape, dtype=like.dtype, device=like.device)
    if x.nbytes >= LARGE:
        advise = _madvise()
        if advise is not None:
            start = -(-x.data_ptr() // _PAGE) * _PAGE
            advise(start, (x.data_ptr() + x.nbytes - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)
    return x


def plain(x: Tensor) -> Tensor:
    """x as its memory holds it: contiguous, no pending conjugation, apart from any graph."""
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    if x.requires_grad:
        x = x.detach()
    return x if x.is_contiguous() else x.contiguous()


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what one pass frees for the next, once per process.

    glibc hands blocks from 128 KiB on back to the kernel until it has seen larger ones freed; every pass then pays for
    fresh pages, up to half of its time for arrays of some MiB. Freeing one untouched block of nearly 32 MiB, the most
    it heeds, raises that limit; up to 64 MiB of free memory then stay with the process. Elsewhere it does nothing.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


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
