"""Whether a GPU is one for which the kernels with the largest tiles were written."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch

TILES = 227 << 10  # bytes that a program of theirs may hold on chip
log = logging.getLogger(__name__)


def roomy(device: torch.device) -> bool:
    """Whether Triton compiles there and a program may hold 227 KiB: an H100, an H200, a B200. Others are told once."""
    return _roomy(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _roomy(index: int) -> bool:
    why = lacking(torch.cuda.get_device_properties(index), torch.version.hip)
    if why is None and not _compiles(index):
        return False  # which has been told
    if why is not None:
        log.warning("blocks and Toeplitz products run in torch's operations on this GPU: %s", why)
    return why is None


def lacking(device: Any, hip: str | None) -> str | None:
    """What the device lacks, in words; None where it lacks nothing."""
    if hip is not None:
        return "their kernels were written for NVIDIA's"
    if (device.major, device.minor) < (9, 0):
        return f"it has compute capability {device.major}.{device.minor}, and their kernels need 9.0"
    held = getattr(device, "shared_memory_per_block_optin", TILES if device.major in (9, 10) else 0)
    return None if held >= TILES else f"a program may hold {held >> 10} KiB on chip, and their kernels need 227"


def _compiles(index: int) -> bool:
    """One addition: a machine without a C compiler cannot launch any kernel."""
    try:
        from resolvent.runtime.chip_triton import increment
    except ImportError:
        return False
    from resolvent.runtime.launch import attempt

    return attempt(("a first kernel", index), lambda: increment(index) == 1.0, lambda: False)
