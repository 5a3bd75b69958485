"""Loops that numba compiles where it is installed, and that run as plain Python elsewhere: same results, slowly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from numba import njit
except ImportError:
    njit = None  # type: ignore[assignment]


def jit_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code at the first call, cached on disk if possible."""
    if njit is None:
        return function
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # no writable cache
        return njit(function)
