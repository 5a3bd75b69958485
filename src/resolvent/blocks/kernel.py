"""A Triton kernel, or torch's operations where it cannot be compiled or launched on the device at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def quick(name: str, run: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`run`; where Triton fails there (a device with less on chip), `other` from then on, which is said once."""
    from resolvent.scan.linear_triton import tried  # Triton comes with a CUDA build of torch, and is never required

    return tried(name, run, other)
