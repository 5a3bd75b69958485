"""How numba compiles our kernels, and the addresses of the rows they process.

Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
PARTIAL = 128  # steps per partial sum: keeps the rounding of long float32 sums small


def jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """njit with fused multiply-adds (which do not lose accuracy), cached on disk if possible."""
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}}
    try:
        return njit(cache=True, **options)(f)
    except RuntimeError:  # no writable folder
        return njit(**options)(f)


@jit
def address(x: Array, i: int, t: int, j: int) -> int:
    """The address of x[i, t, j] of a contiguous array."""
    return x.ctypes.data + ((i * x.shape[1] + t) * x.shape[2] + j) * x.itemsize
