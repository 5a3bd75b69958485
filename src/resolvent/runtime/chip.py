"""A GPU's shared memory: which kernels run there, and with which tile sizes."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from resolvent.runtime.dispatch import push
from resolvent.runtime.fallback import triton_module

# KiB of shared memory per program, by capability times ten (CUDA C++ Programming Guide, technical specifications)
SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
OLDEST = (8, 0)  # the first with bfloat16 products
log = logging.getLogger(__name__)
_stand_in: list[int] = []


def serves(device: torch.device) -> bool:
    """Whether Triton compiles there and kernels of blocks and Toeplitz products have a tile. Others are logged once."""
    return _serves(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _serves(index: int) -> bool:
    why = lacking(torch.cuda.get_device_properties(index), torch.version.hip)
    if why is None and not _compiles(index):
        return False  # already logged
    if why is not None:
        log.warning("blocks and Toeplitz products run in torch's operations on this GPU: %s", why)
    return why is None


def lacking(device: Any, hip: str | None) -> str | None:
    """A message on what the device lacks; None if nothing."""
    if hip is not None:
        return "their kernels were written for NVIDIA's"
    if (device.major, device.minor) < OLDEST:
        return f"it has compute capability {device.major}.{device.minor}, and their kernels need 8.0"
    least, found = min(SHARED.values()), read_capacity(device)
    return None if found >= least else f"a program may hold {found} KiB on chip, and they need {least}"


def read_capacity(device: Any) -> int:
    """KiB of shared memory per program on a device with these properties."""
    stated = getattr(device, "shared_memory_per_block_optin", None)  # not in older versions of torch
    return SHARED.get(10 * device.major + device.minor, 0) if stated is None else int(stated) >> 10


def capacity(like: Any) -> int:
    """KiB of shared memory per program on the device of a tensor; those of an H100 off GPU (the interpreter)."""
    if _stand_in:
        return SHARED[_stand_in[-1]]
    return _capacity(like.device.index) if like.is_cuda else SHARED[90]


def copies_tiles(like: Any) -> bool:
    """Whether the device of a tensor has the tile copy engine and warp-group products required by some kernels; also
    with `stand_in`."""
    if _stand_in:
        return _stand_in[-1] == 90
    return bool(like.is_cuda) and serves(like.device) and _copies_tiles(like.device.index)


@cache
def _copies_tiles(index: int) -> bool:
    return torch.cuda.get_device_capability(index)[0] == 9 and _capacity(index) >= SHARED[90]


@cache
def _capacity(index: int) -> int:
    return read_capacity(torch.cuda.get_device_properties(index))


def stand_in(capability: int) -> AbstractContextManager[None]:
    """Pretend that every tensor is on a chip of that capability, to compile for absent hardware."""
    return push(_stand_in, capability)


def _compiles(index: int) -> bool:
    """Try one addition: without a C compiler no kernel can be launched."""
    from resolvent.runtime.launch import attempt

    own = triton_module("runtime.chip_triton")
    return own is not None and attempt(("a first kernel", index), lambda: own.increment(index) == 1.0, lambda: False)
